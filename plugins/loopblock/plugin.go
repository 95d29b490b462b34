package loopblock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/format"
	"github.com/volumekit/volumekit/mount/image"
	"github.com/volumekit/volumekit/mount/loop"
	"github.com/volumekit/volumekit/volume"
)

// Name is the plugin's name, and the provisioner of its storage classes.
const Name = "volumekit.io/loop-block"

// Driver is the plugin's name in the csi source of a PersistentVolume.
const Driver = "loop-block.volumekit.io"

// The sentinels of this package. Match them with errors.Is.
var (
	// ErrNoFilesystem says that an image holds no filesystem that this plugin knows, or another one than the volume's
	// fsType. It is not formatted: only provisioning formats.
	ErrNoFilesystem = errors.New("no such filesystem in the image")
	// ErrNotStaged says that the staging directory does not show the volume's image. It was not bound.
	ErrNotStaged = errors.New("the volume is not staged")
)

// Options configures a [Plugin]. The zero value is ready to use.
type Options struct {
	// BaseDir is the absolute directory of the images. It is made, with mode 0700, when the first volume is provisioned.
	// Empty means {root}/plugins/volumekit.io/loop-block/images. Two agents of one machine may share it.
	BaseDir string
	// Mounter makes the mounts; nil means a mount.Mounter of the plugin's own.
	Mounter mount.Interface
	// Loops attaches the images; nil means a loop.Manager of the plugin's own.
	Loops *loop.Manager
	// Events gets events of the pod, about an fsGroup that takes long to apply, and of the PersistentVolume, about a filesystem that
	// was repaired or could not be made larger. Nil drops them.
	Events volume.EventRecorder
	// Logger gets a line for each filesystem that was repaired, for content that was given to a group, and for a device that cannot
	// do the direct I/O of its volume's attributes. Nil discards it.
	Logger *slog.Logger
	// Progress is called after every few mebibytes of an image that is copied byte by byte. It must return soon. Nil calls
	// nothing.
	Progress func(CopyProgress)
	// FreezeLimit is how long the filesystem of a volume in use stays frozen at most while a snapshot is made; zero means five
	// seconds. Images on a filesystem that shares blocks (xfs, btrfs) need moments. Elsewhere all data is copied meanwhile, or
	// the error matches ErrTimeout.
	FreezeLimit time.Duration
	// MaxVolumes is how many volumes the node can have attached; zero means that there is no limit. See GetVolumeLimits.
	MaxVolumes int64
	// DirectIO makes loop devices that bypass the page cache of the images' filesystem, where that can do it.
	DirectIO bool
}

// Plugin is the plugin. Make it with [New]. Its methods may be called from several goroutines at once; it keeps nothing in
// memory about volumes, so that a new process goes on where an old one was killed.
type Plugin struct {
	options Options
	host    volume.VolumeHost

	devices     *devices
	mounts      *mounts
	filesystems *filesystems
	freezes     *freezes
	snapshots   *snapshots
}

var (
	_ volume.PersistentVolumePlugin         = (*Plugin)(nil)
	_ volume.ProvisionableVolumePlugin      = (*Plugin)(nil)
	_ volume.CloneableVolumePlugin          = (*Plugin)(nil)
	_ volume.DeletableVolumePlugin          = (*Plugin)(nil)
	_ volume.SnapshotLister                 = (*Plugin)(nil)
	_ volume.GroupSnapshottableVolumePlugin = (*Plugin)(nil)
	_ volume.AttachableVolumePlugin         = (*Plugin)(nil)
	_ volume.BlockVolumePlugin              = (*Plugin)(nil)
	_ volume.ExpandableVolumePlugin         = (*Plugin)(nil)
	_ volume.ModifiableVolumePlugin         = (*Plugin)(nil)
	_ volume.NodeExpandableVolumePlugin     = (*Plugin)(nil)
	_ volume.MountOptionVolumePlugin        = (*Plugin)(nil)
	_ volume.VolumePluginWithAttachLimits   = (*Plugin)(nil)
	_ volume.VolumePluginWithCapacity       = (*Plugin)(nil)
	_ volume.MountingVolumePlugin           = (*Plugin)(nil)
	_ volume.ReconstructableVolumePlugin    = (*Plugin)(nil)
	_ volume.Explainer                      = (*Plugin)(nil)
	_ volume.SpecKindDeclarer               = (*Plugin)(nil)
)

// New returns a plugin. It does nothing yet: register it with a volume.VolumePluginMgr.
func New(options Options) *Plugin {
	if options.Logger == nil {
		options.Logger = slog.New(slog.DiscardHandler)
	}
	if options.Mounter == nil {
		options.Mounter = mount.New(mount.Options{Logger: options.Logger})
	}
	if options.Loops == nil {
		options.Loops = loop.New(loop.Options{Logger: options.Logger})
	}
	return &Plugin{options: options}
}

// Init implements volume.VolumePlugin. It thaws volumes that a killed process has left frozen, and does no other I/O. A BaseDir that is not absolute is an error that matches
// volume.ErrInvalid.
func (p *Plugin) Init(ctx context.Context, host volume.VolumeHost) error {
	dir := p.options.BaseDir
	if dir == "" {
		dir = filepath.Join(host.GetPluginDir(Name), "images")
	}
	if !filepath.IsAbs(dir) || filepath.Clean(dir) == "/" {
		return fmt.Errorf("BaseDir %q: give an absolute directory of its own: %w", dir, volume.ErrInvalid)
	}
	p.host = host
	p.devices = &devices{
		images: images{dir: filepath.Clean(dir)}, loops: p.options.Loops, nodeName: host.GetNodeName(),
		directIO: p.options.DirectIO, logger: p.options.Logger, limit: p.options.MaxVolumes,
	}
	p.mounts = &mounts{
		dir: filepath.Join(host.GetPluginDir(Name), "mounts"), mounter: p.options.Mounter, devices: p.devices, logger: p.options.Logger,
	}
	p.filesystems = &filesystems{devices: p.devices, logger: p.options.Logger, events: p.options.Events}
	p.freezes = &freezes{mounts: p.mounts, limit: cmp.Or(max(p.options.FreezeLimit, 0), defaultFreezeLimit), logger: p.options.Logger}
	p.snapshots = &snapshots{
		copies: copies{mounts: p.mounts, progress: p.options.Progress, logger: p.options.Logger}, freezes: p.freezes,
	}
	p.freezes.thawAllAbandoned(ctx)
	return nil
}

// GetPluginName implements volume.VolumePlugin: it returns [Name].
func (p *Plugin) GetPluginName() string { return Name }

// GetVolumeName implements volume.VolumePlugin: it returns the handle, which is the image's name without its ending.
func (p *Plugin) GetVolumeName(spec *volume.Spec) (string, error) {
	src, err := sourceOf(spec)
	return src.handle, err
}

// CanSupport implements volume.VolumePlugin: it is true for a PersistentVolume whose csi source names this plugin.
func (p *Plugin) CanSupport(spec *volume.Spec) bool { return p.ExplainSupport(spec) == nil }

// SpecKinds implements volume.SpecKindDeclarer: the csi source of a PersistentVolume with the driver [Driver].
func (p *Plugin) SpecKinds() []volume.SpecKind {
	return []volume.SpecKind{{Source: "csi", Driver: Driver, Scope: volume.PersistentScope}}
}

// ExplainSupport implements volume.Explainer.
func (p *Plugin) ExplainSupport(spec *volume.Spec) error { return supports(spec) }

// GetAccessModes implements volume.PersistentVolumePlugin: an image is used by one node, for writing by all of its pods
// or by one, or for reading.
func (p *Plugin) GetAccessModes() []v1.PersistentVolumeAccessMode {
	return []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce, v1.ReadOnlyMany, v1.ReadWriteOncePod}
}

// SupportsMountOption implements volume.MountOptionVolumePlugin: the mount options of a PersistentVolume are those of its
// filesystem.
func (p *Plugin) SupportsMountOption() bool { return true }

// classify makes the sentinels of the mount layer match those of package volume too.
func classify(err error) error {
	for _, pair := range []struct{ theirs, ours error }{
		{loop.ErrInUse, volume.ErrInUse},
		{format.ErrInUse, volume.ErrInUse},
		{mount.ErrUnsupported, volume.ErrUnsupported},
		{image.ErrNotRegular, volume.ErrInvalid},
	} {
		if errors.Is(err, pair.theirs) && !errors.Is(err, pair.ours) {
			return fmt.Errorf("%w (%w)", err, pair.ours)
		}
	}
	return err
}
