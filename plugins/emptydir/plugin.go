package emptydir

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/volume"
)

// Name is the name of the plugin, as in Kubernetes.
const Name = "kubernetes.io/empty-dir"

// partialPrefix begins the name of a directory whose set-up is not complete. A volume's name must not begin with it.
const partialPrefix = ".setting-up-"

// Options are the options of the plugin.
type Options struct {
	// Mounter mounts the tmpfs of volumes in memory, and looks for mounts at and below a volume. Nil means the host's own
	// mounts, by mount.New.
	Mounter mount.Interface
	// Node knows how much memory the node has for pods, which limits a volume in memory. Without it, a volume without a
	// size limit, of a pod without a memory limit, has the kernel's default size: half of the machine's memory.
	Node Node
}

// Node knows the resources of the node. The Node of package files is one.
type Node interface {
	// Allocatable returns the resources that the pods of the node may use together.
	Allocatable(ctx context.Context) (v1.ResourceList, error)
}

// Plugin serves empty directories. Make one with [New]; it may be used from several goroutines at once.
type Plugin struct {
	host  volume.VolumeHost
	mount mount.Interface
	node  Node
}

var (
	_ volume.VolumePlugin                = (*Plugin)(nil)
	_ volume.ReconstructableVolumePlugin = (*Plugin)(nil)
	_ volume.Explainer                   = (*Plugin)(nil)
	_ volume.SpecKindDeclarer            = (*Plugin)(nil)
	_ volume.ReusableVolumePlugin        = (*Plugin)(nil)
)

// New returns the plugin. It does no I/O.
func New(options Options) *Plugin {
	if options.Mounter == nil {
		options.Mounter = mount.New(mount.Options{})
	}
	return &Plugin{mount: options.Mounter, node: options.Node}
}

// Init implements [volume.VolumePlugin].
func (p *Plugin) Init(_ context.Context, host volume.VolumeHost) error {
	p.host = host
	return nil
}

// GetPluginName implements [volume.VolumePlugin].
func (p *Plugin) GetPluginName() string { return Name }

// GetVolumeName implements [volume.VolumePlugin]. The name is the inner name, which is unique only within its pod.
func (p *Plugin) GetVolumeName(spec *volume.Spec) (string, error) {
	if _, err := sourceOf(spec); err != nil {
		return "", err
	}
	return spec.Name(), nil
}

// CanSupport implements [volume.VolumePlugin].
func (p *Plugin) CanSupport(spec *volume.Spec) bool {
	return spec != nil && spec.Volume != nil && spec.Volume.EmptyDir != nil
}

// SpecKinds implements [volume.SpecKindDeclarer].
func (p *Plugin) SpecKinds() []volume.SpecKind { return []volume.SpecKind{{Source: "emptyDir"}} }

// SetUpIsMount implements [volume.MountingVolumePlugin]. It is true for a volume in memory, and false for a directory on
// disk.
func (p *Plugin) SetUpIsMount(spec *volume.Spec) bool {
	return p.CanSupport(spec) && spec.Volume.EmptyDir.Medium == v1.StorageMediumMemory
}

// MountDeviceIsMount implements [volume.MountingVolumePlugin]. It is false, because the plugin stages nothing.
func (p *Plugin) MountDeviceIsMount(*volume.Spec) bool { return false }

// CanReuse implements [volume.ReusableVolumePlugin]. SetUp does not change a volume in memory that is mounted.
func (p *Plugin) CanReuse(spec *volume.Spec) bool { return p.SetUpIsMount(spec) }

// ExplainSupport implements [volume.Explainer].
func (p *Plugin) ExplainSupport(spec *volume.Spec) error {
	if p.CanSupport(spec) {
		return nil
	}
	return errors.New("it has no emptyDir source")
}

// NewMounter implements [volume.VolumePlugin]. For a medium of huge pages the error matches volume.ErrUnsupported, for a
// negative limit volume.ErrInvalid.
func (p *Plugin) NewMounter(spec *volume.Spec, pod *v1.Pod) (volume.Mounter, error) {
	source, err := sourceOf(spec)
	if err != nil {
		return nil, err
	}
	if pod == nil {
		return nil, fmt.Errorf("emptyDir volume %q: the pod is nil: %w", spec.Name(), volume.ErrInvalid)
	}
	if err := checkMedium(source.Medium); err != nil {
		return nil, fmt.Errorf("emptyDir volume %q: %w", spec.Name(), err)
	}
	if limit := source.SizeLimit; limit != nil && limit.Sign() < 0 {
		return nil, fmt.Errorf("emptyDir volume %q: sizeLimit %s is negative: give a size, or none: %w",
			spec.Name(), limit, volume.ErrInvalid)
	}
	dir, err := p.newDirectory(spec.Name(), pod.UID)
	if err != nil {
		return nil, err
	}
	return &mounter{directory: dir, medium: source.Medium, limit: source.SizeLimit, pod: memoryOf(pod), node: p.node}, nil
}

// NewUnmounter implements [volume.VolumePlugin].
func (p *Plugin) NewUnmounter(name string, podUID types.UID) (volume.Unmounter, error) {
	dir, err := p.newDirectory(name, podUID)
	if err != nil {
		return nil, err
	}
	return &unmounter{directory: dir}, nil
}

// ConstructVolumeSpec implements [volume.ReconstructableVolumePlugin]. The spec lacks the medium and the limit, which a
// teardown does not need. If SetUp has not made the directory or mount at the path, that is an error, so that a teardown
// never removes foreign content.
func (p *Plugin) ConstructVolumeSpec(volumeName, mountPath string) (volume.ReconstructedVolume, error) {
	//nolint:forbidigo // The interface has no context.
	ctx, cancel := context.WithTimeout(context.Background(), lookTimeout)
	defer cancel()
	if err := p.prove(ctx, volumeName, mountPath); err != nil {
		return volume.ReconstructedVolume{}, fmt.Errorf("emptyDir volume at %s: %w", mountPath, err)
	}
	return volume.ReconstructedVolume{Spec: volume.NewSpecFromVolume(&v1.Volume{
		Name:         volumeName,
		VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}},
	})}, nil
}

// lookTimeout bounds a read of a directory of the node.
const lookTimeout = 10 * time.Second

// prove returns an error unless SetUp made the directory or mount at path for the volume of that name.
func (p *Plugin) prove(ctx context.Context, volumeName, path string) error {
	below, err := filepath.Rel(p.host.GetPodsDir(), path)
	if err != nil {
		return fmt.Errorf("%w: %w", volume.ErrInvalid, err)
	}
	uid, _, _ := strings.Cut(below, "/")
	dir, err := p.newDirectory(volumeName, types.UID(uid))
	if err != nil {
		return err
	}
	if dir.path != path {
		return fmt.Errorf("the volume %q of that pod would be at %s: %w", volumeName, dir.path, volume.ErrInvalid)
	}
	return dir.prove(ctx)
}

// prove returns an error unless SetUp made the directory or mount at the volume's path. An empty directory needs no proof;
// a tmpfs leaves one after a reboot.
func (d *directory) prove(ctx context.Context) error {
	found, err := d.mount.Lookup(ctx, d.path)
	if err == nil {
		return checkOurs(d.path, found)
	}
	if !errors.Is(err, mount.ErrNotMounted) {
		return err
	}
	return d.owned(d.path).Prove(ctx, d.paths())
}

func sourceOf(spec *volume.Spec) (*v1.EmptyDirVolumeSource, error) {
	if spec == nil || spec.Volume == nil || spec.Volume.EmptyDir == nil {
		return nil, fmt.Errorf("volume %q has no emptyDir source: it is not one of %s: %w",
			spec.Name(), Name, volume.ErrInvalid)
	}
	return spec.Volume.EmptyDir, nil
}

func checkMedium(medium v1.StorageMedium) error {
	switch {
	case medium == v1.StorageMediumDefault, medium == v1.StorageMediumMemory:
		return nil
	case strings.HasPrefix(string(medium), string(v1.StorageMediumHugePages)):
		return fmt.Errorf("medium %q: huge pages are not served: use \"Memory\": %w", medium, volume.ErrUnsupported)
	}
	return fmt.Errorf("medium %q is not known: use \"\" or \"Memory\": %w", medium, volume.ErrInvalid)
}

// checkName checks an inner name, which becomes a path element.
func checkName(name string) error {
	if strings.HasPrefix(name, partialPrefix) {
		return fmt.Errorf("name %q begins with %q, which is kept for set-ups under way: %w", name, partialPrefix, volume.ErrInvalid)
	}
	return volume.CheckPathElement(name)
}

// directory is one volume of one pod.
type directory struct {
	mount mount.Interface
	name  string
	path  string
	// proofs is the directory with the proofs of which directories SetUp has made.
	proofs  string
	walked  *volume.MetricsDu
	counted *volume.MetricsStatFS
}

func (p *Plugin) newDirectory(name string, podUID types.UID) (*directory, error) {
	if err := errors.Join(checkName(name), volume.CheckPathElement(string(podUID))); err != nil {
		return nil, fmt.Errorf("emptyDir volume of pod %q: %w", podUID, err)
	}
	path := p.host.GetPodVolumeDir(podUID, Name, name)
	return &directory{
		mount: p.mount, name: name, path: path, proofs: p.host.GetPodPluginDir(podUID, Name),
		walked: volume.NewMetricsDu(path), counted: volume.NewMetricsStatFS(path),
	}, nil
}

// GetPath implements [volume.Volume].
func (d *directory) GetPath() string { return d.path }

// GetMetrics implements [volume.MetricsProvider]. It reads the counters of a tmpfs, and walks a directory.
func (d *directory) GetMetrics(ctx context.Context) (*volume.Metrics, error) {
	mounted, err := d.mount.IsMountPoint(ctx, d.path)
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return nil, err
	case mounted:
		return d.counted.GetMetrics(ctx)
	}
	return d.walked.GetMetrics(ctx)
}

// partial returns the path at which the directory dir is prepared.
func partial(dir string) string {
	return filepath.Join(filepath.Dir(dir), partialPrefix+filepath.Base(dir))
}
