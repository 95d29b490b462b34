// Package cachetest has plugins, pods and volumes for the tests of the states of the world.
package cachetest

import (
	"context"
	"runtime"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/volume"
)

const (
	// Node is the name of the plugins' node.
	Node = types.NodeName("node-1")
	// PluginName is the name of [Plugin].
	PluginName = "example.com/plain"

	driver = "plain.example.com"
)

// Plugin supports volumes of the driver "plain.example.com". Volumes whose names begin with "s" are attached, staged and shared by
// pods.
type Plugin struct {
	volume.AttachableVolumePlugin // for the methods that the states do not call
	// Remount makes RequiresRemount return true: volumes are set up again when their pod is updated.
	Remount bool
	// Any makes CanSupport return true for every spec.
	Any bool
	// OnCanSupport, if not nil, is called at the start of CanSupport.
	OnCanSupport func()
}

// Init implements volume.VolumePlugin.
func (p *Plugin) Init(context.Context, volume.VolumeHost) error { return nil }

// GetPluginName implements volume.VolumePlugin.
func (p *Plugin) GetPluginName() string { return PluginName }

// CanSupport implements volume.VolumePlugin.
func (p *Plugin) CanSupport(spec *volume.Spec) bool {
	if p.OnCanSupport != nil {
		p.OnCanSupport()
	}
	d, ok := spec.Driver()
	return p.Any || ok && d.PluginName == PluginName
}

// GetVolumeName implements volume.VolumePlugin.
func (p *Plugin) GetVolumeName(spec *volume.Spec) (string, error) { return spec.Name(), nil }

// CanAttach implements volume.AttachableVolumePlugin.
func (p *Plugin) CanAttach(spec *volume.Spec) (bool, error) { return spec.Name()[0] == 's', nil }

// CanDeviceMount implements volume.DeviceMountableVolumePlugin.
func (p *Plugin) CanDeviceMount(spec *volume.Spec) (bool, error) { return spec.Name()[0] == 's', nil }

// RequiresRemount implements volume.RemountableVolumePlugin.
func (p *Plugin) RequiresRemount(*volume.Spec) bool { return p.Remount }

// anyPlugin supports every volume. A volume whose name ends with "1" is set up again when its pod is updated.
type anyPlugin struct{ Plugin }

func (p *anyPlugin) GetPluginName() string { return "example.com/any" }
func (p *anyPlugin) RequiresRemount(spec *volume.Spec) bool {
	return strings.HasSuffix(spec.Name(), "1")
}

// NewPlugins returns a registry with one plugin.
func NewPlugins(t testing.TB, p volume.VolumePlugin) *volume.VolumePluginMgr {
	t.Helper()
	host, err := volume.NewHost(volume.HostOptions{RootDir: "/var/lib/agent", NodeName: Node})
	if err != nil {
		t.Fatal(err)
	}
	plugins := volume.NewVolumePluginMgr(host)
	if err := plugins.InitPlugins(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	return plugins
}

// NewAnyPlugins returns a registry with a plugin that supports every volume. It attaches, stages and shares the same volumes as
// [Plugin].
func NewAnyPlugins(t testing.TB) *volume.VolumePluginMgr {
	t.Helper()
	return NewPlugins(t, &anyPlugin{Plugin{Any: true}})
}

// Pod returns a pod whose UID is its name.
func Pod(name string) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(name)}}
}

// Spec returns a volume of a pod.
func Spec(name string) *volume.Spec {
	return volume.NewSpecFromVolume(&v1.Volume{
		Name: name, VolumeSource: v1.VolumeSource{CSI: &v1.CSIVolumeSource{Driver: driver}},
	})
}

// RWO returns the PersistentVolume of a claim, for one node.
func RWO(name string) *volume.Spec { return persistent(name, v1.ReadWriteOnce) }

// RWX is [RWO] for many nodes.
func RWX(name string) *volume.Spec { return persistent(name, v1.ReadWriteMany) }

func persistent(name string, mode v1.PersistentVolumeAccessMode) *volume.Spec {
	return volume.NewSpecFromPersistentVolume(&v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1.PersistentVolumeSpec{
			AccessModes: []v1.PersistentVolumeAccessMode{mode},
			PersistentVolumeSource: v1.PersistentVolumeSource{
				CSI: &v1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: name},
			},
		},
	}, false)
}

// Shared returns the unique name of a volume that pods share.
func Shared(name string) v1.UniqueVolumeName { return volume.GetUniqueVolumeName(PluginName, name) }

// ObjectsOf calls live 4,000 times, and returns the number of objects by which the heap grows in the last 3,000 calls.
func ObjectsOf(live func(i int)) int64 {
	const n = 1000
	for i := range n { // These calls allocate the objects that are kept for reuse.
		live(i)
	}
	before := memory().HeapObjects
	for i := n; i < 4*n; i++ {
		live(i)
	}
	return int64(memory().HeapObjects) - int64(before)
}

// Heap returns the number of bytes in use on the heap.
func Heap() uint64 { return memory().HeapAlloc }

func memory() (m runtime.MemStats) {
	runtime.GC()
	runtime.GC() // The second collection frees what finalizers and pools kept.
	runtime.ReadMemStats(&m)
	return m
}
