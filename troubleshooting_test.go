package volumekit_test

import (
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The page for the person on call names each phase, each reason of a condition, and each reason of a warning.
func TestEveryReasonIsOnThePageOfTroubleshooting(t *testing.T) {
	page := content(t, "docs/troubleshooting.md")
	for file, pattern := range map[string]string{
		"volumemanager/internal/health/health.go":   `(?m)^\t[A-Z]\w* += "(\w+)"$`,
		"volumemanager/internal/mountwatch/hung.go": `(?m)^const Event\w+ = "(\w+)"`,
		"volumemanager/status.go":                   `(?m)^\tPhase\w+ Phase = "(\w+)"`,
		"operationexecutor/events.go":               `"(\w+)" +// warning`,
		"controller/persistentvolume/marks.go":      `(?m)^\tReason\w+ = "(\w+)"`,
		"plugins/loopblock/filesystem.go":           `(?m)^const Event\w+ = "(\w+)"`,
		"controller/internal/objects/reasons.go":    `"(Claim\w+|VolumeFailed\w+|VolumeUnknown\w+)"`,
	} {
		reasons := regexp.MustCompile(pattern).FindAllStringSubmatch(content(t, file), -1)
		require.NotEmpty(t, reasons, "%s has no reason any more: change this test", file)
		for _, reason := range reasons {
			assert.Contains(t, page, "`"+reason[1]+"`", "docs/troubleshooting.md does not explain a reason of %s", file)
		}
	}
}
