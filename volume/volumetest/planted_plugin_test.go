package volumetest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/volume"
)

// The kinds of the planted plugin: how its volumes reach a pod.
const (
	inline      = "inline"      // a tmpfs of the pod's own
	provisioned = "provisioned" // a disk that is bound into each pod
	staging     = "staged"      // a disk that is mounted once per node
	attached    = "attached"    // a disk that is attached to a node before
	block       = "block"       // a disk that pods get as a device
)

const (
	plantedName   = "example.com/planted"
	plantedDriver = "planted.example.com"
)

// plantedPlugin is a plugin of one kind, written as its author would, and sound while bug is empty. Where a bug is planted, the
// line asks for it by name: see plantedBugs.
type plantedPlugin struct {
	kind, bug string
	storage   *plantedStorage
	mounter   mount.Interface
	host      volume.VolumeHost
	// formatted are the disks of which this value knows that they have a filesystem, as a bug believes.
	formatted map[string]bool
	// seen are the disks that this value has attached.
	seen map[string]bool
}

// has reports whether the bug of that name is planted.
func (p *plantedPlugin) has(bug string) bool { return p.bug == bug }

func (p *plantedPlugin) Init(_ context.Context, host volume.VolumeHost) error {
	p.host = host
	return nil
}

func (p *plantedPlugin) GetPluginName() string { return plantedName }

func (p *plantedPlugin) CanSupport(spec *volume.Spec) bool {
	return spec.HasDriver(plantedName) && (spec.PersistentVolume == nil) == (p.kind == inline)
}

func (p *plantedPlugin) Capabilities() volume.Capabilities {
	disks := volume.CapPersistent | volume.CapProvision | volume.CapDelete | volume.CapExpand | volume.CapMountOptions
	return map[string]volume.Capabilities{
		inline:      volume.CapReconstruct,
		provisioned: disks | volume.CapClone | volume.CapNodeExpand,
		staging:     disks | volume.CapDeviceMount | volume.CapNodeExpand,
		attached:    disks | volume.CapDeviceMount | volume.CapNodeExpand | volume.CapAttach,
		block:       disks | volume.CapBlock,
	}[p.kind]
}

func (p *plantedPlugin) SupportsMountOption() bool { return true }

func (p *plantedPlugin) GetAccessModes() []v1.PersistentVolumeAccessMode {
	return []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce, v1.ReadWriteMany}
}

// GetVolumeName returns the name of the disk, or of the pod's own volume.
func (p *plantedPlugin) GetVolumeName(spec *volume.Spec) (string, error) {
	if !p.CanSupport(spec) {
		return "", fmt.Errorf("volume %q is not one of %s: %w", spec.Name(), plantedName, volume.ErrInvalid)
	}
	name := spec.Name()
	if pv := spec.PersistentVolume; pv != nil {
		name = pv.Spec.CSI.VolumeHandle
	}
	return name, errors.Join(volume.CheckPathElement(name), volume.CheckPathElement(spec.Name()))
}

func (p *plantedPlugin) ConstructVolumeSpec(name, _ string) (volume.ReconstructedVolume, error) {
	return volume.ReconstructedVolume{Spec: volume.NewSpecFromVolume(&v1.Volume{
		Name: name, VolumeSource: v1.VolumeSource{CSI: &v1.CSIVolumeSource{Driver: plantedDriver}},
	})}, volume.CheckPathElement(name)
}

func (p *plantedPlugin) NewMounter(spec *volume.Spec, pod *v1.Pod) (volume.Mounter, error) {
	disk, err := p.GetVolumeName(spec)
	if err != nil {
		return nil, err
	}
	driver, _ := spec.Driver()
	m := &plantedVolume{p: p, name: spec.Name(), disk: disk, pod: pod, readOnly: driver.ReadOnly || spec.ReadOnly}
	return m, m.locate(pod.UID)
}

func (p *plantedPlugin) NewUnmounter(name string, podUID types.UID) (volume.Unmounter, error) {
	m := &plantedVolume{p: p, name: name}
	return m, m.locate(podUID)
}

// plantedVolume is one volume of one pod; the disk, the pod and readOnly are known to the mounter alone.
type plantedVolume struct {
	p          *plantedPlugin
	name, disk string
	pod        *v1.Pod
	readOnly   bool
	path       string
}

func (v *plantedVolume) locate(podUID types.UID) error {
	name := v.name
	if v.p.has("two volumes of a pod are at one path") {
		name = "volume"
	}
	if v.p.has("names are cut at twelve bytes") && len(name) > 12 {
		name = name[:12]
	}
	v.path = v.p.host.GetPodVolumeDir(podUID, plantedName, name)
	return errors.Join(volume.CheckPathElement(v.name), volume.CheckPathElement(string(podUID)))
}

func (v *plantedVolume) GetPath() string { return v.path }

func (v *plantedVolume) GetAttributes() volume.Attributes {
	return volume.Attributes{ReadOnly: v.readOnly, Managed: !v.readOnly}
}

func (v *plantedVolume) GetMetrics(context.Context) (*volume.Metrics, error) {
	if v.p.has("GetMetrics keeps a descriptor") {
		v.p.storage.keepOpen()
	}
	size := v.p.storage.filesystemOf(v.disk)
	if v.p.kind == inline {
		size = inlineSize
	}
	if size == 0 {
		return nil, volume.ErrUnsupported
	}
	return &volume.Metrics{Time: metav1.Now(), Capacity: resource.NewQuantity(size, resource.BinarySI)}, nil
}

// inlineSize is the size of a volume of the pod's own.
const inlineSize = 16 << 20

func (v *plantedVolume) SetUp(ctx context.Context, args volume.MounterArgs) error {
	return v.SetUpAt(ctx, v.path, args)
}

func (v *plantedVolume) SetUpAt(ctx context.Context, dir string, args volume.MounterArgs) error {
	if !v.p.has("two set-ups of a volume mount twice") {
		defer v.p.storage.lock(v.name)()
	}
	if v.p.has("SetUp notes something at the pod") {
		v.pod.Annotations["planted"] = "seen" // which a pod without annotations does not survive
	}
	mounted, err := v.p.isMounted(ctx, dir)
	if err != nil {
		return err
	}
	if mounted && args.IsRemount && v.p.has("a refresh mounts anew") {
		err = v.p.mounter.Unmount(ctx, dir, mount.UnmountOptions{Lazy: true})
		mounted = false
	}
	if mounted || err != nil {
		return err
	}
	if v.p.has("a failed SetUp leaves its directory") {
		if err := v.p.storage.world.MkdirAll(dir, 0o750); err != nil {
			return err
		}
	}
	if err := v.mount(ctx, dir); err != nil {
		return err
	}
	if v.p.has("each SetUp opens the root for all users") {
		return v.p.storage.world.Chmod(dir, 0o777)
	}
	return nil
}

func (v *plantedVolume) mount(ctx context.Context, dir string) error {
	options := []string{"nosuid", "nodev"}
	if v.p.has("nosuid is forgotten") {
		options = []string{"nodev"}
	}
	if v.p.has("nodev is forgotten") {
		options = []string{"nosuid"}
	}
	if v.readOnly {
		options = append(options, "ro")
	}
	request := mount.Request{Source: "tmpfs", Target: dir, FSType: "tmpfs", Options: append(options, "size=16m", "mode=1777")}
	if v.p.has("only root may enter a new volume") {
		request.Options = append(options, "size=16m", "mode=0700")
	}
	if v.p.kind == provisioned {
		if err := v.p.storage.exists(v.disk); err != nil {
			return err
		}
		request = mount.Request{Source: diskPath(v.disk), Target: dir, Options: append(options, "bind")}
	}
	if v.p.kind == staging || v.p.kind == attached {
		stage := v.p.stagePath(v.disk)
		staged, err := v.p.isMounted(ctx, stage)
		if err == nil && !staged && v.p.has("SetUp binds an empty directory where nothing is staged") {
			err = v.p.storage.world.MkdirAll(stage, 0o750)
			staged = true
		}
		if err == nil && !staged {
			err = fmt.Errorf("volume %q is not staged: %w", v.name, mount.ErrNotMounted)
		}
		if err != nil {
			return err
		}
		request = mount.Request{Source: stage, Target: dir, Options: append(options, "bind")}
	}
	return v.p.mounter.Mount(ctx, request)
}

// isMounted reports whether something is mounted at path, which need not be there.
func (p *plantedPlugin) isMounted(ctx context.Context, path string) (bool, error) {
	mounted, err := p.mounter.IsMountPoint(ctx, path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return mounted, err
}

func (v *plantedVolume) TearDown(ctx context.Context) error { return v.TearDownAt(ctx, v.path) }

func (v *plantedVolume) TearDownAt(ctx context.Context, dir string) error {
	options := mount.UnmountOptions{}
	if v.p.has("TearDown is lazy") {
		options.Lazy = true
	}
	defer v.p.storage.lock(v.name)()
	if err := v.tearDownOthers(ctx, dir); err != nil {
		return err
	}
	return mount.UnmountPath(ctx, v.p.mounter, dir, options)
}

// tearDownOthers is what bugs take away beside the volume.
func (v *plantedVolume) tearDownOthers(ctx context.Context, dir string) error {
	ofPrefix := v.p.has("TearDown takes every path that begins with its own")
	ofName := v.p.has("TearDown takes the volume of that name from every pod")
	ofStage := v.p.has("the last TearDown unstages too")
	if !ofPrefix && !ofName && !ofStage {
		return nil
	}
	table, err := v.p.mounter.List(ctx)
	for _, m := range table {
		prefix := ofPrefix && strings.HasPrefix(m.Path, dir)
		name := ofName && strings.HasSuffix(m.Path, "/"+v.name)
		stage := ofStage && strings.HasPrefix(m.Path, v.p.stagePath(""))
		if prefix || name || stage {
			err = errors.Join(err, mount.UnmountPath(ctx, v.p.mounter, m.Path, mount.UnmountOptions{Lazy: stage}))
		}
	}
	return err
}
