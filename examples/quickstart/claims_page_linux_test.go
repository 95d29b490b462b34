package main

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/mount/mounttest"
)

// The manifests that docs/claims.md tells people to write are those of a pod that becomes ready.
func TestTheManifestsOfThePageOnClaimsWork(t *testing.T) {
	mounttest.RequireRoot(t)
	page, err := os.ReadFile("../../docs/claims.md")
	require.NoError(t, err)
	var manifests []string
	for _, block := range regexp.MustCompile("(?ms)^```yaml\n(.*?)^```$").FindAllStringSubmatch(string(page), -1) {
		manifests = append(manifests, block[1])
	}
	require.Len(t, manifests, 3)
	p := newProgram(t, "-json", "-f", "-")
	p.Stdin = strings.NewReader(strings.Join(manifests, "---\n"))
	require.Equal(t, 0, p.run(t), p.stderr.String())
	assert.Equal(t, map[string]string{"site": loopBlock}, pluginsOf(p.documents(t)["ready"].Volumes))
}
