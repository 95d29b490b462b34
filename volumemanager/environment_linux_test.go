package volumemanager

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/volume"
)

// told is the environment of every container.
type told struct {
	values map[string]string
	err    error
	asked  []string
}

func (e *told) ContainerEnvironment(_ context.Context, _ *v1.Pod, c *v1.Container) (map[string]string, error) {
	e.asked = append(e.asked, c.Name)
	return e.values, e.err
}

// TestTheOrchestratorTellsTheVariablesOfASubPathExpr that come from elsewhere; it is right about the others, too.
func TestTheOrchestratorTellsTheVariablesOfASubPathExpr(t *testing.T) {
	e := &told{values: map[string]string{"TENANT": "blue", "SITE": "b", "EMPTY": "", "WHOLE": "."}}
	n := newContainerNode(t,
		v1.VolumeMount{MountPath: "/a", SubPathExpr: "$(TENANT)/$(SITE)"}, v1.VolumeMount{MountPath: "/b", SubPathExpr: "$(SITE)"})
	c := &n.pod.Spec.Containers[0]
	c.EnvFrom = []v1.EnvFromSource{{SecretRef: &v1.SecretEnvSource{}}}
	c.Env = []v1.EnvVar{{Name: "SITE", Value: "a"}}
	require.NoError(t, n.manager.UpdatePod(t.Context(), n.pod))
	require.ErrorIs(t, n.refused(), volume.ErrUnsupported, "Options.Environment is not set")

	n.options.Environment = e
	n.restart()
	require.NoError(t, n.manager.AddPod(t.Context(), n.pod))
	n.ready()
	n.mounts()
	assert.DirExists(t, filepath.Join(n.volumeDir(), "blue", "b"))
	assert.NoDirExists(t, filepath.Join(n.volumeDir(), "a"))
	assert.Equal(t, []string{"main"}, e.asked, "once in a call")

	for expression, variable := range map[string]string{"$(NOWHERE)": "NOWHERE", "x/$(EMPTY)": "EMPTY"} {
		n.update(expression)
		err := n.refused()
		var unknown *VariableError
		require.ErrorAs(t, err, &unknown)
		assert.Equal(t, variable, unknown.Variable)
		require.ErrorIs(t, err, volume.ErrInvalid)
	}
	n.update("$(WHOLE)")
	require.ErrorIs(t, n.refused(), volume.ErrInvalid, "an expression never leads to the whole volume")
	n.update("$(SITE)")
	e.err = errStore
	require.ErrorIs(t, n.refused(), errStore)

	e.asked, n.pod.Spec.Containers[0].VolumeMounts[0].SubPathExpr = nil, ""
	require.NoError(t, n.manager.UpdatePod(t.Context(), n.pod))
	n.mounts()
	assert.Empty(t, e.asked, "a container without an expression needs none")
	n.remove()
}

// update gives the container one mount with an expression.
func (n *containerNode) update(expression string) {
	n.t.Helper()
	n.pod = n.pod.DeepCopy()
	n.pod.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "cache", MountPath: "/a", SubPathExpr: expression}}
	require.NoError(n.t, n.manager.UpdatePod(n.t.Context(), n.pod))
}

// TestASubPathThatLeadsNowhereIsTheWholeVolume, as in Kubernetes.
func TestASubPathThatLeadsNowhereIsTheWholeVolume(t *testing.T) {
	n := newContainerNode(t, v1.VolumeMount{MountPath: "/a", SubPath: "."}, v1.VolumeMount{MountPath: "/b", SubPath: "./", ReadOnly: true})
	mounts := n.mounts().Mounts
	for _, m := range mounts {
		assert.Equal(t, n.volumeDir(), m.Source)
	}
	assert.True(t, mounts[1].ReadOnly)
	assert.Len(t, n.mounted(), 1, "nothing is bound")
	n.remove()
}
