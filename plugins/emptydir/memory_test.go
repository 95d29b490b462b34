package emptydir

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/volume"
)

// node is a node with so much memory for pods.
type node struct {
	memory string
	err    error
}

func (n node) Allocatable(context.Context) (v1.ResourceList, error) {
	if n.err != nil || n.memory == "" {
		return nil, n.err
	}
	return memory(n.memory), nil
}

func memory(size string) v1.ResourceList {
	return v1.ResourceList{v1.ResourceMemory: resource.MustParse(size)}
}

// limited is a container that may use so much memory; "" is one without a limit.
func limited(size string) v1.Container {
	if size == "" {
		return v1.Container{}
	}
	return v1.Container{Resources: v1.ResourceRequirements{Limits: memory(size)}}
}

func TestMemoryIsAsLargeAsThePodOrTheNodeAllows(t *testing.T) {
	sidecar := limited("3Mi")
	sidecar.RestartPolicy = new(v1.ContainerRestartPolicy)
	*sidecar.RestartPolicy = v1.ContainerRestartPolicyAlways
	for name, tt := range map[string]struct {
		limit string // of the volume
		spec  v1.PodSpec
		node  Node
		want  string // the size of the tmpfs; "" when it has none of its own
	}{
		"nothing is known":                {spec: v1.PodSpec{Containers: []v1.Container{limited("")}}},
		"the pod's containers":            {spec: v1.PodSpec{Containers: []v1.Container{limited("1Mi"), limited("2Mi")}}, want: "3Mi"},
		"one of them has no limit":        {spec: v1.PodSpec{Containers: []v1.Container{limited("1Mi"), limited("")}}},
		"an init container has none":      {spec: v1.PodSpec{InitContainers: []v1.Container{limited("")}, Containers: []v1.Container{limited("1Mi")}}},
		"an init container needs more":    {spec: v1.PodSpec{InitContainers: []v1.Container{limited("4Mi")}, Containers: []v1.Container{limited("1Mi")}}, want: "4Mi"},
		"one that stays is counted":       {spec: v1.PodSpec{InitContainers: []v1.Container{sidecar, limited("1Mi")}, Containers: []v1.Container{limited("2Mi")}}, want: "5Mi"},
		"it stays beside later ones":      {spec: v1.PodSpec{InitContainers: []v1.Container{sidecar, limited("4Mi")}, Containers: []v1.Container{limited("2Mi")}}, want: "7Mi"},
		"the pod's own limit":             {spec: v1.PodSpec{Resources: &v1.ResourceRequirements{Limits: memory("8Mi")}, Containers: []v1.Container{limited("")}}, want: "8Mi"},
		"its overhead":                    {spec: v1.PodSpec{Overhead: memory("1Mi"), Containers: []v1.Container{limited("1Mi")}}, want: "2Mi"},
		"the node's allocatable":          {spec: v1.PodSpec{Containers: []v1.Container{limited("")}}, node: node{memory: "32Mi"}, want: "32Mi"},
		"a pod's limit below that":        {spec: v1.PodSpec{Containers: []v1.Container{limited("1Mi")}}, node: node{memory: "32Mi"}, want: "1Mi"},
		"a pod's limit above that":        {spec: v1.PodSpec{Containers: []v1.Container{limited("64Mi")}}, node: node{memory: "32Mi"}, want: "32Mi"},
		"the volume's limit below both":   {limit: "1Mi", spec: v1.PodSpec{Containers: []v1.Container{limited("2Mi")}}, node: node{memory: "32Mi"}, want: "1Mi"},
		"the volume's limit above both":   {limit: "64Mi", spec: v1.PodSpec{Containers: []v1.Container{limited("2Mi")}}, node: node{memory: "32Mi"}, want: "2Mi"},
		"the node does not say":           {spec: v1.PodSpec{Containers: []v1.Container{limited("")}}, node: node{}},
		"more than a number of bytes can": {limit: "10E", spec: v1.PodSpec{Containers: []v1.Container{limited("1Mi")}}, want: "1Mi"},
	} {
		t.Run(name, func(t *testing.T) {
			mounter := fake.NewMounter(fake.MounterOptions{})
			path, err := setUpInMemory(t, New(Options{Mounter: mounter, Node: tt.node}), tt.limit, tt.spec)
			require.NoError(t, err)
			got, err := mounter.Capacity(path)
			if tt.want == "" {
				require.ErrorIs(t, err, errors.ErrUnsupported, "it has no size of its own")
				return
			}
			require.NoError(t, err)
			want := resource.MustParse(tt.want)
			assert.Equal(t, want.Value(), got)
		})
	}
	t.Run("the node cannot be asked", func(t *testing.T) {
		down := errors.New("the server is down")
		_, err := setUpInMemory(t, New(Options{Mounter: fake.NewMounter(fake.MounterOptions{}), Node: node{err: down}}), "", v1.PodSpec{})
		require.ErrorIs(t, err, down)
		require.ErrorIs(t, err, volume.ErrTransient, "nothing was begun")
	})
}

// setUpInMemory sets up a volume in memory and returns its path.
func setUpInMemory(t *testing.T, plugin *Plugin, limit string, podSpec v1.PodSpec) (string, error) {
	t.Helper()
	require.NoError(t, plugin.Init(t.Context(), fake.NewHost("")))
	mounter, err := plugin.NewMounter(spec(v1.StorageMediumMemory, limit), &v1.Pod{ObjectMeta: pod.ObjectMeta, Spec: podSpec})
	require.NoError(t, err)
	return mounter.GetPath(), mounter.SetUp(t.Context(), volume.MounterArgs{})
}
