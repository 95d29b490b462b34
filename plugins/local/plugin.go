package local

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"syscall"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/loop"
	"github.com/volumekit/volumekit/volume"
)

// Name is the name of the plugin, as in Kubernetes.
const Name = "kubernetes.io/local-volume"

// The sentinels of this package. Match them with errors.Is.
var (
	// ErrNotStaged says that the staging directory does not show the target of the volume. It was not bound.
	ErrNotStaged = errors.New("the volume is not staged")
	// ErrWrongContent says that a disk does not hold the filesystem of the volume. The disk was not changed.
	ErrWrongContent = errors.New("not the filesystem of the volume")
)

// Options says what the plugin works with, and what it may serve. The zero value is useful.
type Options struct {
	// Mounter makes the mounts. Nil: the host's own, by mount.New.
	Mounter mount.Interface
	// Protected are absolute paths that are refused as the node's root is: each path, what is in it and what is above it. The
	// root of the host is always one of them.
	Protected []string
	// Events gets events about the pod, for an fsGroup that takes long to apply, and for one that is not applied because other
	// pods have the volume; and about the PersistentVolume, for a filesystem that was repaired. Nil discards them.
	Events volume.EventRecorder
	// Logger gets a line for each disk that was formatted and each filesystem that was repaired or expanded. Nil discards them.
	Logger *slog.Logger
}

// Plugin serves local volumes. Make one with [New]; it may be used from several goroutines at once. It keeps nothing in
// memory about volumes.
type Plugin struct {
	host      volume.VolumeHost
	mount     mount.Interface
	devices   *loop.Manager // finds out whether a block device is in use
	protected []string
	events    volume.EventRecorder
	logger    *slog.Logger
	// isSame is sameFile, except in tests with a mounter that is not the kernel's.
	isSame func(a, b string) (bool, error)
}

var (
	_ volume.PersistentVolumePlugin      = (*Plugin)(nil)
	_ volume.DeviceMountableVolumePlugin = (*Plugin)(nil)
	_ volume.BlockVolumePlugin           = (*Plugin)(nil)
	_ volume.NodeExpandableVolumePlugin  = (*Plugin)(nil)
	_ volume.MountOptionVolumePlugin     = (*Plugin)(nil)
	_ volume.MountingVolumePlugin        = (*Plugin)(nil)
	_ volume.ReconstructableVolumePlugin = (*Plugin)(nil)
	_ volume.SpecKindDeclarer            = (*Plugin)(nil)
	_ volume.Explainer                   = (*Plugin)(nil)
)

// New returns the plugin. It does no I/O; options are checked by Init.
func New(options Options) *Plugin {
	p := &Plugin{
		mount: options.Mounter, protected: slices.Clone(options.Protected), events: options.Events, logger: options.Logger,
		isSame: sameFile,
	}
	if p.logger == nil {
		p.logger = slog.New(slog.DiscardHandler)
	}
	if p.mount == nil {
		p.mount = mount.New(mount.Options{Logger: p.logger})
	}
	p.devices = loop.New(loop.Options{Logger: p.logger})
	return p
}

// Init implements [volume.VolumePlugin]. A protected path that is not absolute is an error that matches volume.ErrInvalid.
func (p *Plugin) Init(_ context.Context, host volume.VolumeHost) error {
	for _, path := range p.protected {
		if !filepath.IsAbs(path) {
			return fmt.Errorf("protected path %q: give an absolute path: %w", path, volume.ErrInvalid)
		}
	}
	p.host = host
	p.protected = append(p.protected, filepath.Dir(host.GetPodsDir()))
	return nil
}

// GetPluginName implements [volume.VolumePlugin].
func (p *Plugin) GetPluginName() string { return Name }

// GetVolumeName implements [volume.VolumePlugin]: it is the name of the PersistentVolume.
func (p *Plugin) GetVolumeName(spec *volume.Spec) (string, error) { return nameOf(spec) }

// CanSupport implements [volume.VolumePlugin].
func (p *Plugin) CanSupport(spec *volume.Spec) bool { return localOf(spec) != nil }

// SpecKinds implements [volume.SpecKindDeclarer].
func (p *Plugin) SpecKinds() []volume.SpecKind { return []volume.SpecKind{{Source: "local"}} }

// ExplainSupport implements [volume.Explainer].
func (p *Plugin) ExplainSupport(spec *volume.Spec) error {
	if p.CanSupport(spec) {
		return nil
	}
	return errors.New("it has no local source")
}

// GetAccessModes implements [volume.PersistentVolumePlugin]: what one node has serves one node.
func (p *Plugin) GetAccessModes() []v1.PersistentVolumeAccessMode {
	return []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}
}

// SupportsMountOption implements [volume.MountOptionVolumePlugin]: those of a disk are its filesystem's, those of a directory
// the bind's, such as noexec.
func (p *Plugin) SupportsMountOption() bool { return true }

// SetUpIsMount implements [volume.MountingVolumePlugin].
func (p *Plugin) SetUpIsMount(*volume.Spec) bool { return true }

// MountDeviceIsMount implements [volume.MountingVolumePlugin].
func (p *Plugin) MountDeviceIsMount(*volume.Spec) bool { return true }

// ConstructVolumeSpec implements [volume.ReconstructableVolumePlugin]. The spec has no path; a teardown does not need one.
func (p *Plugin) ConstructVolumeSpec(volumeName, mountPath string) (volume.ReconstructedVolume, error) {
	if err := volume.CheckPathElement(volumeName); err != nil {
		return volume.ReconstructedVolume{}, fmt.Errorf("local volume at %s: %w", mountPath, err)
	}
	return volume.ReconstructedVolume{Spec: reconstructed(volumeName, v1.PersistentVolumeFilesystem)}, nil
}

// reconstructed returns the spec of a volume that was found on disk.
func reconstructed(name string, mode v1.PersistentVolumeMode) *volume.Spec {
	return volume.NewSpecFromPersistentVolume(&v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1.PersistentVolumeSpec{
			VolumeMode:             &mode,
			PersistentVolumeSource: v1.PersistentVolumeSource{Local: &v1.LocalVolumeSource{}},
		},
	}, false)
}

// mountAt returns what is mounted at path: of several mounts the uppermost.
func (p *Plugin) mountAt(ctx context.Context, path string) (there mount.MountPoint, mounted bool, err error) {
	there, err = p.mount.Lookup(ctx, path)
	if errors.Is(err, mount.ErrNotMounted) {
		return mount.MountPoint{}, false, nil
	}
	return there, err == nil, err
}

// unmountOwn unmounts the mount at path, and those below it with the same content. It removes path by rmdir.
func (p *Plugin) unmountOwn(ctx context.Context, path string) error {
	there, _, err := p.mountAt(ctx, path)
	if err != nil {
		return err
	}
	err = mount.UnmountPath(ctx, p.mount, path, mount.UnmountOptions{Expect: shownBy(there)})
	switch {
	case errors.Is(err, syscall.EBUSY):
		return errors.Join(err, volume.ErrInUse)
	case errors.Is(err, syscall.ENOTEMPTY):
		return errors.Join(err, volume.ErrDirectoryKept)
	}
	return err
}

// shownBy returns an identity that matches every mount with the same content as m.
func shownBy(m mount.MountPoint) mount.Identity {
	return mount.Identity{Major: m.Major, Minor: m.Minor, Root: m.Root, FSType: m.FSType}
}
