package hostpath

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/safepath"
	"github.com/volumekit/volumekit/volume"
)

// Name is the name of the plugin, as in Kubernetes.
const Name = "kubernetes.io/host-path"

// Options says what the plugin may serve. The zero value serves every path but those of the node's own root.
type Options struct {
	// Protected are absolute paths that are refused as the node's root is: each path, what is in it and what is above
	// it. The root of the host is always one of them.
	Protected []string
	// BaseDir is the absolute directory in which volumes are provisioned, and in which alone they are recycled and deleted.
	// It is made, with mode 0700, when the first volume is provisioned. It must lie apart from what is protected. Empty:
	// nothing is provisioned, recycled or deleted.
	BaseDir string
	// Mounter tells what is mounted at and in what is to be removed, where Files is nil. Nil: the host's own mounts, by
	// mount.New.
	Mounter mount.Interface
	// Files is the filesystem of the node. Nil: that of the program.
	Files Files
	// Recycler recycles volumes by a pod of the orchestrator's. Nil: the plugin recycles in this process.
	Recycler volume.PodRecycler
}

// Plugin serves host paths. Make one with [New]; it may be used from several goroutines at once.
type Plugin struct {
	host      volume.VolumeHost
	protected []string
	baseDir   string // clean; empty when there is none
	files     Files
	recycler  volume.PodRecycler
}

var (
	_ volume.PersistentVolumePlugin    = (*Plugin)(nil)
	_ volume.ProvisionableVolumePlugin = (*Plugin)(nil)
	_ volume.RecyclableVolumePlugin    = (*Plugin)(nil)
	_ volume.DeletableVolumePlugin     = (*Plugin)(nil)
	_ volume.CapabilityLimiter         = (*Plugin)(nil)
	_ volume.Explainer                 = (*Plugin)(nil)
	_ volume.SpecKindDeclarer          = (*Plugin)(nil)
)

// New returns the plugin. It does no I/O; options are checked by Init.
func New(options Options) *Plugin {
	if options.Mounter == nil {
		options.Mounter = mount.New(mount.Options{})
	}
	if options.Files == nil {
		options.Files = nodeFiles{options.Mounter}
	}
	return &Plugin{
		protected: slices.Clone(options.Protected), baseDir: options.BaseDir, files: options.Files, recycler: options.Recycler,
	}
}

// Init implements [volume.VolumePlugin]. A protected path or a base directory that is not absolute is an error
// that matches volume.ErrInvalid.
func (p *Plugin) Init(_ context.Context, host volume.VolumeHost) error {
	for _, path := range p.protected {
		if !filepath.IsAbs(path) {
			return fmt.Errorf("protected path %q: give an absolute path: %w", path, volume.ErrInvalid)
		}
	}
	if p.baseDir != "" {
		if !filepath.IsAbs(p.baseDir) || filepath.Clean(p.baseDir) == "/" {
			return fmt.Errorf("BaseDir %q: give an absolute directory of its own: %w", p.baseDir, volume.ErrInvalid)
		}
		p.baseDir = filepath.Clean(p.baseDir)
	}
	p.host = host
	p.protected = append(p.protected, filepath.Dir(host.GetPodsDir()))
	return nil
}

// Capabilities implements [volume.CapabilityLimiter]: without a base directory nothing is provisioned, recycled or deleted.
func (p *Plugin) Capabilities() volume.Capabilities {
	if p.baseDir == "" {
		return volume.AllCapabilities &^ (volume.CapProvision | volume.CapRecycle | volume.CapDelete)
	}
	return volume.AllCapabilities
}

// GetPluginName implements [volume.VolumePlugin].
func (p *Plugin) GetPluginName() string { return Name }

// GetVolumeName implements [volume.VolumePlugin]: it is the path.
func (p *Plugin) GetVolumeName(spec *volume.Spec) (string, error) {
	source, err := sourceOf(spec)
	if err != nil {
		return "", err
	}
	return filepath.Clean(source.Path), nil
}

// CanSupport implements [volume.VolumePlugin].
func (p *Plugin) CanSupport(spec *volume.Spec) bool { return hostPathOf(spec) != nil }

// SpecKinds implements [volume.SpecKindDeclarer].
func (p *Plugin) SpecKinds() []volume.SpecKind { return []volume.SpecKind{{Source: "hostPath"}} }

// ExplainSupport implements [volume.Explainer].
func (p *Plugin) ExplainSupport(spec *volume.Spec) error {
	if p.CanSupport(spec) {
		return nil
	}
	return errors.New("it has no hostPath source")
}

// GetAccessModes implements [volume.PersistentVolumePlugin]: a path of one node serves one node.
func (p *Plugin) GetAccessModes() []v1.PersistentVolumeAccessMode {
	return []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}
}

// NewMounter implements [volume.VolumePlugin].
func (p *Plugin) NewMounter(spec *volume.Spec, pod *v1.Pod) (volume.Mounter, error) {
	source, err := sourceOf(spec)
	if err != nil {
		return nil, err
	}
	if pod == nil {
		return nil, fmt.Errorf("host path volume %q: the pod is nil: %w", spec.Name(), volume.ErrInvalid)
	}
	if err := volume.CheckPathElement(spec.Name()); err != nil {
		return nil, fmt.Errorf("host path volume: %w", err)
	}
	want := v1.HostPathUnset
	if source.Type != nil {
		want = *source.Type
	}
	return &mounter{
		name: spec.Name(), path: source.Path, want: want,
		readOnly: spec.PersistentVolume != nil && spec.ReadOnly, plugin: p,
	}, nil
}

// NewUnmounter implements [volume.VolumePlugin]. Its GetPath is the pod's directory of the volume, at which nothing ever
// is: the host path cannot be known from the name, and TearDown does not need it.
func (p *Plugin) NewUnmounter(name string, podUID types.UID) (volume.Unmounter, error) {
	if err := errors.Join(volume.CheckPathElement(name), volume.CheckPathElement(string(podUID))); err != nil {
		return nil, fmt.Errorf("host path volume: %w", err)
	}
	return &unmounter{path: p.host.GetPodVolumeDir(podUID, Name, name)}, nil
}

// apart returns what path leads to, unless that is protected, in it or above it: the error then matches volume.ErrInvalid.
func (p *Plugin) apart(path string) (string, error) {
	resolved, err := p.files.ResolveApart(path, p.protected...)
	return resolved, notApart(err)
}

// notApart makes what says that a path is protected match volume.ErrInvalid.
func notApart(err error) error {
	if errors.Is(err, safepath.ErrOverlap) {
		return fmt.Errorf("%w: %w", err, volume.ErrInvalid)
	}
	return err
}

// hostPathOf returns the source of spec, nil when it has none.
func hostPathOf(spec *volume.Spec) *v1.HostPathVolumeSource {
	switch {
	case spec == nil:
		return nil
	case spec.Volume != nil:
		return spec.Volume.HostPath
	case spec.PersistentVolume != nil:
		return spec.PersistentVolume.Spec.HostPath
	}
	return nil
}

func sourceOf(spec *volume.Spec) (*v1.HostPathVolumeSource, error) {
	source := hostPathOf(spec)
	if source == nil {
		return nil, fmt.Errorf("volume %q has no hostPath source: it is not one of %s: %w",
			spec.Name(), Name, volume.ErrInvalid)
	}
	return source, nil
}
