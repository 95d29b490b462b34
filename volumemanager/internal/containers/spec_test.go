package containers

import (
	"testing"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/volume"
)

func TestAContainerThatAsksForTheImpossibleIsRefused(t *testing.T) {
	mount := func(target string, change ...func(*v1.VolumeMount)) v1.VolumeMount {
		m := v1.VolumeMount{Name: "data", MountPath: target}
		for _, f := range change {
			f(&m)
		}
		return m
	}
	propagate := func(mode v1.MountPropagationMode) func(*v1.VolumeMount) {
		return func(m *v1.VolumeMount) { m.MountPropagation = &mode }
	}
	recursive := func(mode v1.RecursiveReadOnlyMode) func(*v1.VolumeMount) {
		return func(m *v1.VolumeMount) { m.ReadOnly, m.RecursiveReadOnly = true, &mode }
	}
	writable := func(m *v1.VolumeMount) { m.ReadOnly = false }
	sub := func(path string) func(*v1.VolumeMount) { return func(m *v1.VolumeMount) { m.SubPath = path } }
	expr := func(m *v1.VolumeMount) { m.SubPathExpr = "$(A)" }
	isTrue := true
	privileged := &v1.SecurityContext{Privileged: &isTrue}

	for name, test := range map[string]struct {
		container v1.Container
		refused   bool
	}{
		"plain":                           {v1.Container{VolumeMounts: []v1.VolumeMount{mount("/a"), mount("/a/b"), mount("/ab")}}, false},
		"target that is not absolute":     {v1.Container{VolumeMounts: []v1.VolumeMount{mount("a")}}, true},
		"no target":                       {v1.Container{VolumeMounts: []v1.VolumeMount{mount("")}}, true},
		"target that leads up":            {v1.Container{VolumeMounts: []v1.VolumeMount{mount("/a/../b")}}, true},
		"target with dots in a name":      {v1.Container{VolumeMounts: []v1.VolumeMount{mount("/a..b/..c")}}, false},
		"the root":                        {v1.Container{VolumeMounts: []v1.VolumeMount{mount("/")}}, true},
		"the root, said otherwise":        {v1.Container{VolumeMounts: []v1.VolumeMount{mount("//./")}}, true},
		"one target twice":                {v1.Container{VolumeMounts: []v1.VolumeMount{mount("/a/b"), mount("/a//b/")}}, true},
		"a mount and a device at once":    {v1.Container{VolumeMounts: []v1.VolumeMount{mount("/a")}, VolumeDevices: []v1.VolumeDevice{{Name: "d", DevicePath: "/a"}}}, true},
		"device":                          {v1.Container{VolumeDevices: []v1.VolumeDevice{{Name: "d", DevicePath: "/dev/x"}}}, false},
		"device that is not absolute":     {v1.Container{VolumeDevices: []v1.VolumeDevice{{Name: "d", DevicePath: "x"}}}, true},
		"sub-path":                        {v1.Container{VolumeMounts: []v1.VolumeMount{mount("/a", sub("x/y"))}}, false},
		"sub-path that leads up":          {v1.Container{VolumeMounts: []v1.VolumeMount{mount("/a", sub("x/../../y"))}}, true},
		"sub-path that is absolute":       {v1.Container{VolumeMounts: []v1.VolumeMount{mount("/a", sub("/x"))}}, true},
		"the whole volume as sub-path":    {v1.Container{VolumeMounts: []v1.VolumeMount{mount("/a", sub(".")), mount("/b", sub("././"))}}, false},
		"sub-path of dots":                {v1.Container{VolumeMounts: []v1.VolumeMount{mount("/a", sub("..."))}}, false},
		"sub-path that comes back":        {v1.Container{VolumeMounts: []v1.VolumeMount{mount("/a", sub("./.."))}}, true},
		"sub-path that is the root":       {v1.Container{VolumeMounts: []v1.VolumeMount{mount("/a", sub("/."))}}, true},
		"sub-path and expression":         {v1.Container{VolumeMounts: []v1.VolumeMount{mount("/a", sub("x"), expr)}}, true},
		"told of mounts":                  {v1.Container{VolumeMounts: []v1.VolumeMount{mount("/a", propagate(v1.MountPropagationHostToContainer))}}, false},
		"tells of mounts":                 {v1.Container{VolumeMounts: []v1.VolumeMount{mount("/a", propagate(v1.MountPropagationBidirectional))}}, true},
		"tells of mounts, unprivileged":   {v1.Container{VolumeMounts: []v1.VolumeMount{mount("/a", propagate(v1.MountPropagationBidirectional))}, SecurityContext: &v1.SecurityContext{Privileged: new(bool)}}, true},
		"tells of mounts, privileged":     {v1.Container{VolumeMounts: []v1.VolumeMount{mount("/a", propagate(v1.MountPropagationBidirectional))}, SecurityContext: privileged}, false},
		"propagation of another kind":     {v1.Container{VolumeMounts: []v1.VolumeMount{mount("/a", propagate("rshared"))}}, true},
		"recursive":                       {v1.Container{VolumeMounts: []v1.VolumeMount{mount("/a", recursive(v1.RecursiveReadOnlyEnabled))}}, false},
		"recursive and writable":          {v1.Container{VolumeMounts: []v1.VolumeMount{mount("/a", recursive(v1.RecursiveReadOnlyIfPossible), writable)}}, true},
		"recursive, not at all":           {v1.Container{VolumeMounts: []v1.VolumeMount{mount("/a", recursive(v1.RecursiveReadOnlyDisabled), writable)}}, false},
		"recursive and told of mounts":    {v1.Container{VolumeMounts: []v1.VolumeMount{mount("/a", recursive(v1.RecursiveReadOnlyEnabled), propagate(v1.MountPropagationHostToContainer))}}, true},
		"recursive, propagation None":     {v1.Container{VolumeMounts: []v1.VolumeMount{mount("/a", recursive(v1.RecursiveReadOnlyEnabled), propagate(v1.MountPropagationNone))}}, false},
		"recursive in a way that is none": {v1.Container{VolumeMounts: []v1.VolumeMount{mount("/a", recursive("Perhaps"))}}, true},
	} {
		err := checkContainer(&test.container)
		if test.refused {
			require.ErrorIs(t, err, volume.ErrInvalid, name)
		} else {
			require.NoError(t, err, name)
		}
	}
}
