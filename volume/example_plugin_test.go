package volume_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/volume"
)

// scratchPlugin is a whole plugin: a volume is a directory that goes with its pod. It serves csi volumes whose driver
// is scratch.example.com.
type scratchPlugin struct{ host volume.VolumeHost }

const scratchName = "example.com/scratch"

func (p *scratchPlugin) Init(_ context.Context, host volume.VolumeHost) error {
	p.host = host
	return nil
}

func (p *scratchPlugin) GetPluginName() string { return scratchName }

// SpecKinds spares the plugin the question about every volume that is not its own. Both sources by which a pod can name
// it are there; of a PersistentVolume it serves none.
func (p *scratchPlugin) SpecKinds() []volume.SpecKind {
	kinds := volume.DriverKinds(scratchName)
	for i := range kinds {
		kinds[i].Scope = volume.PodScope
	}
	return kinds
}

// CanSupport says the same of one spec.
func (p *scratchPlugin) CanSupport(spec *volume.Spec) bool {
	return spec.PersistentVolume == nil && spec.HasDriver(scratchName)
}

func (p *scratchPlugin) GetVolumeName(spec *volume.Spec) (string, error) { return spec.Name(), nil }

func (p *scratchPlugin) NewMounter(spec *volume.Spec, pod *v1.Pod) (volume.Mounter, error) {
	return p.volume(spec.Name(), pod.UID), nil
}

func (p *scratchPlugin) NewUnmounter(name string, podUID types.UID) (volume.Unmounter, error) {
	return p.volume(name, podUID), nil
}

func (p *scratchPlugin) volume(name string, podUID types.UID) *scratch {
	return &scratch{path: p.host.GetPodVolumeDir(podUID, scratchName, name)}
}

// scratch is the mounter and the unmounter of one volume.
type scratch struct {
	volume.MetricsNil // a directory of a shared filesystem: volume.MetricsDu would measure it
	path              string
}

func (s *scratch) GetPath() string                    { return s.path }
func (s *scratch) GetAttributes() volume.Attributes   { return volume.Attributes{Managed: true} }
func (s *scratch) TearDown(ctx context.Context) error { return s.TearDownAt(ctx, s.path) }
func (s *scratch) SetUp(ctx context.Context, args volume.MounterArgs) error {
	return s.SetUpAt(ctx, s.path, args)
}

func (s *scratch) SetUpAt(_ context.Context, dir string, _ volume.MounterArgs) error {
	return os.MkdirAll(dir, 0o750)
}

// TearDownAt finds nothing after a tear-down that succeeded, and must succeed then too. It removes an empty directory
// only, and by rmdir, which can remove nothing else: this example has no content that it would be right to delete.
func (s *scratch) TearDownAt(_ context.Context, dir string) error {
	if err := syscall.Rmdir(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// A registry with one small plugin, and the life of one volume by hand. A program leaves the calls to volumemanager,
// which also survives what can go wrong between them.
func Example() {
	ctx := context.Background()
	root, err := os.MkdirTemp("", "example-")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(root)

	host, err := volume.NewHost(volume.HostOptions{RootDir: root, NodeName: "node-1"})
	if err != nil {
		fmt.Println(err)
		return
	}
	plugins := volume.NewVolumePluginMgr(host)
	if err := plugins.InitPlugins(ctx, &scratchPlugin{}); err != nil {
		fmt.Println(err)
		return
	}

	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", UID: "7f3c"}}
	spec := volume.NewSpecFromVolume(&v1.Volume{Name: "data", VolumeSource: v1.VolumeSource{
		CSI: &v1.CSIVolumeSource{Driver: "scratch.example.com"},
	}})
	unique, err := plugins.UniqueVolumeName(volume.GetUniquePodName(pod), spec)
	fmt.Println(unique, err)

	plugin, err := plugins.FindPluginBySpec(spec)
	if err != nil {
		fmt.Println(err)
		return
	}
	mounter, err := plugin.NewMounter(spec, pod)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(mounter.SetUp(ctx, volume.MounterArgs{}))
	fmt.Println(strings.TrimPrefix(mounter.GetPath(), filepath.Clean(root)))

	// After a restart nothing is left of the mounter. The inner name and the pod's UID are enough.
	unmounter, err := plugin.NewUnmounter(spec.Name(), pod.UID)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(unmounter.TearDown(ctx), unmounter.TearDown(ctx))

	// Output:
	// example.com/scratch/pods/7f3c/data <nil>
	// <nil>
	// /pods/7f3c/volumes/example.com~scratch/data
	// <nil> <nil>
}

// A look-up that fails says what was asked, who was asked, and why each said no.
func ExampleVolumePluginMgr_FindPluginBySpec() {
	host, err := volume.NewHost(volume.HostOptions{RootDir: "/var/lib/example", NodeName: "node-1"})
	if err != nil {
		fmt.Println(err)
		return
	}
	plugins := volume.NewVolumePluginMgr(host)
	if err := plugins.InitPlugins(context.Background(), &scratchPlugin{}); err != nil {
		fmt.Println(err)
		return
	}
	spec := volume.NewSpecFromVolume(&v1.Volume{Name: "logs", VolumeSource: v1.VolumeSource{
		HostPath: &v1.HostPathVolumeSource{Path: "/var/log"},
	}})
	_, err = plugins.FindPluginBySpec(spec)
	fmt.Println(err)
	fmt.Println(errors.Is(err, volume.ErrNoPlugin))

	_, err = plugins.FindProvisionablePluginByName("example.com/scratch")
	fmt.Println(err)
	fmt.Println(errors.Is(err, volume.ErrUnsupported))

	// Output:
	// no volume plugin matched: volume "logs" (hostPath): registered plugins: example.com/scratch (it declares csi scratch.example.com of a pod, flexVolume example.com/scratch of a pod)
	// true
	// no volume plugin matched: plugin name "example.com/scratch": example.com/scratch does not support provision
	// true
}
