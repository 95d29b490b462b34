package volumekit_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// walkStep begins a step of a walk.
var walkStep = regexp.MustCompile(`(?m)^\d+\. `)

func TestEveryStepOfTheWalksNamesFunctionsThatExist(t *testing.T) {
	page, err := os.ReadFile("docs/architecture.md")
	require.NoError(t, err)
	_, walks, ok := strings.Cut(string(page), "\n## Four walks\n")
	require.True(t, ok)
	walks, _, _ = strings.Cut(walks, "\n## ")
	code := declarations(t)
	for _, title := range []string{"A pod", "A claim", "A secret", "A deadline"} {
		_, walk, ok := strings.Cut(walks, "\n### "+title+"\n")
		require.True(t, ok, title)
		walk, _, _ = strings.Cut(walk, "\n### ")
		steps := walkStep.Split(walk, -1)[1:]
		assert.GreaterOrEqual(t, len(steps), 4, title)
		for i, step := range steps {
			names := inBackticks.FindAllStringSubmatch(step, -1)
			assert.NotEmpty(t, names, "step %d of %q names no function", i+1, title)
			for _, name := range names {
				assert.True(t, code.has(name[1], nil), "step %d of %q: %s is not in the code", i+1, title, name[1])
			}
		}
	}
}
