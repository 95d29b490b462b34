package manifest

import (
	"errors"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/plugins/loopblock"
)

// quickstartSet returns the manifests of the quickstart.
func quickstartSet(t *testing.T) *Set {
	t.Helper()
	var text string
	for _, name := range []string{"pod.yaml", "storage.yaml"} {
		content, err := os.ReadFile("../../quickstart/manifests/" + name)
		require.NoError(t, err)
		text += string(content) + "---\n"
	}
	m, err := Load("", nil, text)
	require.NoError(t, err)
	return m
}

func TestPruneTakesVolumesOutOfPodsContainersAndClaims(t *testing.T) {
	m := quickstartSet(t)
	var asked []string
	out := m.Prune(func(fsType string) error {
		asked = append(asked, fsType)
		return errors.New("missing")
	})
	assert.Equal(t, []string{"ext4", "ext4"}, asked)
	require.Len(t, out, 2)
	assert.Equal(t, LeftOut{Pod: "default/first-light", Volume: "data", Plugin: loopblock.Name, Reason: "missing"}, out[0])
	assert.Empty(t, m.Claims)
	require.Len(t, m.Pods[0].Spec.Volumes, 3)
	for _, mount := range containerMounts(m.Pods[0]) {
		assert.NotContains(t, []string{"data", "library"}, mount.Name)
	}
}

func TestPruneLeavesWhatCanBeServed(t *testing.T) {
	m := quickstartSet(t)
	assert.Empty(t, m.Prune(func(string) error { return nil }))
	assert.Len(t, m.Pods[0].Spec.Volumes, 5)
	assert.Len(t, m.Claims, 2)
}
