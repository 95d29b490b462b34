package volumemanager

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/volumekit/volumekit/cache"
	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/blockmap"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/mountwatch"
	"github.com/volumekit/volumekit/volumemanager/internal/rootlock"
)

// The defaults of [Options].
const (
	// DefaultWaitTimeout is how long kubelet waits for the volumes of a pod.
	DefaultWaitTimeout = 2*time.Minute + 3*time.Second
	// DefaultResync is the mean time between two looks at every volume.
	DefaultResync = 10 * time.Minute
	// DefaultFilesystemLook is the time between two looks at the filesystems on block devices.
	DefaultFilesystemLook = 30 * time.Second
)

// Options says how a manager works. The zero value is the careful one: records below the root, which is locked, and
// plugins whose reports are checked against the mount table. It has no claims and no observer.
type Options struct {
	// Store is where claims and PersistentVolumes are read. Nil: a pod that uses a claim is refused.
	Store store.Store
	// AttachedBy says who attaches volumes to this node and detaches them. The zero value is [AttachedByNode].
	AttachedBy AttachedBy
	// VolumesInUse takes the list of the volumes that this node uses, where a controller attaches. Nil: it is written into
	// the status of the node's object in Store.
	VolumesInUse VolumesInUseReporter
	// Prober tells of plugins that come and go while Run runs. A volume that no plugin serves is then no mistake: it waits
	// for its plugin. Nil: the plugins are those that were registered.
	Prober volume.DynamicPluginProber
	// DeviceUse tells, before a device is detached, whether it is still open. Nil: it is not asked.
	DeviceUse operationexecutor.DeviceUse
	// Mounter is what the program mounts with: give the *mount.Mounter that the plugins have. It tells whether something is
	// mounted where a plugin says so, so that a plugin that reports success without a mount, or a failure in spite of one, is
	// found out. A fake needs no more than that. What else it can do is made use of:
	//
	//   - a mount.Interface binds the sub-paths of containers, and devices where BlockMapper is nil. Otherwise that is done by a
	//     mount.Mounter of the manager's own, which knows of no calls that others have lost;
	//   - with a *mount.Mounter, what others do to the mounts of volumes is noticed by events, nothing is done to a mount that is
	//     not ours, data that may be lost is told of before an unmount, and see MountTable and HungUnmount.
	//
	// Nil: a *mount.Mounter of the manager's own, which knows of no calls that the plugins' mounter has abandoned.
	Mounter operationexecutor.MountPoints
	// NoMountChecks says that plugins are trusted: nothing is looked up in the mount table. It is for plugins that mount nothing in
	// it: fakes, and measurements. Mounter must be nil then.
	NoMountChecks bool
	// BlockMapper binds and links the devices of block volumes. Nil: the kernel's devices, as [NewDeviceMapper] has them.
	BlockMapper operationexecutor.BlockMapper
	// Loops tells which loop devices there are; a *loop.Manager is one. With it, those whose files lie under the root and that
	// neither a record nor a mount accounts for are orphans; see Orphans. Nil: loop devices are not looked at.
	Loops LoopDevices
	// SELinux tells the labels of containers; [ReadSELinuxLabels] returns those of the host's policy. Nil: SELinux is off, and no
	// volume is mounted with a label.
	SELinux SELinuxLabels
	// SELinuxMount says which volumes are mounted with the label of the containers that use them. Two pods with different
	// labels do not get such a volume at once: the second one waits, and its status says for whom.
	SELinuxMount cache.SELinuxMount
	// Environment tells the variables of a container for a subPathExpr. Nil: they are those that the pod itself tells, and one
	// that a config map, a secret or a resource holds is a [VariableError].
	Environment ContainerEnvironment
	// RecursiveReadOnly says that the kernel (Linux 5.12) and the container runtime can make a mount read-only with all
	// mounts beneath it. False: a container that needs it (recursiveReadOnly Enabled) gets no mounts.
	RecursiveReadOnly bool
	// Observer is told of every operation. Nil: nobody is.
	Observer operationexecutor.Observer
	// Recorder gets the events of pods and volumes. Nil: they are dropped.
	Recorder volume.EventRecorder
	// Logger gets what happens beside operations. Nil: it is discarded.
	Logger *slog.Logger

	// RuntimeDir is the absolute path of a directory for the records of mounts, which do not outlive a boot; a tmpfs
	// such as /run/agent is right. It is made when it is missing, and locked while Run runs. One that belongs to another
	// user, root excepted, or that others may write to is refused, for the records are trusted. Empty: records/mounts below
	// the root of the plugins' host.
	RuntimeDir string
	// StateDir is the absolute path of a directory for the records of attachments, which may outlive a boot. It must be
	// on a disk; every write is synced. It is made, locked and refused as RuntimeDir is. Empty: attachments are recorded in
	// RuntimeDir, and so forgotten when the machine reboots; where RuntimeDir is empty too, in records/attachments below the root.
	StateDir string
	// NoRecords says that nothing is recorded, so that a manager that starts after a crash does not know what the earlier one
	// left mounted: for tests on fakes, and for a program whose mounts end with it, in a mount namespace of its own.
	// RuntimeDir and StateDir must be empty then.
	NoRecords bool

	// HungUnmount says what is done when the teardown of a volume hangs. The zero value does nothing but tell.
	HungUnmount HungUnmount
	// Orphans says what becomes of mounts, directories and loop devices under the root of which nothing is on record. With
	// NoRecords they are not looked for.
	Orphans OrphanPolicy

	// Resync is the mean time between two looks at every volume, for what no event tells of; each is jittered by a
	// tenth. Zero means [DefaultResync]; less than zero turns it off.
	Resync time.Duration
	// FilesystemLook is the time between two looks at each filesystem on a block device that a volume has, since the kernel
	// reports no event when one fails. A look costs some system calls and reads nothing from the device; without such
	// volumes there is none. An ext4 that complains of something is written, to find out whether a write has failed; of other
	// filesystems that is found out at the resync and at the teardown. Zero means [DefaultFilesystemLook]; less than zero turns it off.
	FilesystemLook time.Duration
	// WaitTimeout bounds a wait whose context has no deadline. Zero means [DefaultWaitTimeout].
	WaitTimeout time.Duration
	// Backoff is how long an operation that failed waits before it is tried again. The zero value is that of
	// Kubernetes: half a second, doubled each time, at most two minutes and two seconds.
	Backoff operationexecutor.Backoff
	// Timeouts bounds operations. The zero value has the executor's defaults.
	Timeouts operationexecutor.Timeouts
	// PluginTimeouts bounds operations of one plugin, by its name; a field that is zero there has the bound of Timeouts.
	PluginTimeouts map[string]operationexecutor.Timeouts
	// HungPerPlugin is how many calls of one plugin may hang before no more of them are made. Zero means the executor's
	// default.
	HungPerPlugin int
	// WorkersPerPlugin is how many operations of one plugin run at once. Zero means the executor's default.
	WorkersPerPlugin int
}

// MountTable is an optional interface of [Options].Mounter; a *mount.Mounter has it. Present, it is on record by what each
// mount is known, and what is on record is compared at the start with what is mounted. Absent, the records are all that is
// known.
type MountTable interface {
	// List returns the mount table.
	List(ctx context.Context) ([]mount.MountPoint, error)
	// Lookup returns the facts of the uppermost mount at path. The error matches mount.ErrNotMounted when there is none. It
	// never waits for the filesystem there.
	Lookup(ctx context.Context, path string) (mount.MountPoint, error)
}

// withMounter fills in the mounter that was left out.
func (o Options) withMounter() Options {
	if o.Mounter == nil && !o.NoMountChecks {
		o.Mounter = mount.New(mount.Options{Logger: o.Logger})
	}
	return o
}

// binder returns what binds sub-paths and devices.
func (o Options) binder() mount.Interface {
	if mounter, ok := o.Mounter.(mount.Interface); ok {
		return mounter
	}
	return mount.New(mount.Options{Logger: o.Logger})
}

// withDefaults fills in what was left out and says what is wrong.
func (o Options) withDefaults(binder mount.Interface) (Options, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Resync == 0 {
		o.Resync = DefaultResync
	}
	if o.FilesystemLook == 0 {
		o.FilesystemLook = DefaultFilesystemLook
	}
	if o.WaitTimeout == 0 {
		o.WaitTimeout = DefaultWaitTimeout
	}
	if o.BlockMapper == nil {
		o.BlockMapper = NewDeviceMapper(blockmap.New(blockmap.Options{Mounter: binder}))
	}
	var errs []error
	if o.WaitTimeout < 0 {
		errs = append(errs, fmt.Errorf("WaitTimeout %s: give a positive time: %w", o.WaitTimeout, volume.ErrInvalid))
	}
	if o.WorkersPerPlugin < 0 {
		errs = append(errs, fmt.Errorf("WorkersPerPlugin %d: give a positive number: %w", o.WorkersPerPlugin, volume.ErrInvalid))
	}
	if err := o.HungUnmount.check(); err != nil {
		errs = append(errs, err)
	}
	if o.Orphans != OrphansAreReported && o.Orphans != OrphansAreRemoved {
		errs = append(errs, fmt.Errorf("unknown policy %q of Orphans: %w", o.Orphans, volume.ErrInvalid))
	}
	if o.HungPerPlugin < 0 {
		errs = append(errs, fmt.Errorf("HungPerPlugin %d: give a positive number: %w", o.HungPerPlugin, volume.ErrInvalid))
	}
	if o.NoMountChecks && o.Mounter != nil {
		errs = append(errs, fmt.Errorf("NoMountChecks and Mounter: give one of them: %w", volume.ErrInvalid))
	}
	errs = append(errs, o.checkAttachment())
	errs = append(errs, o.checkRecords())
	return o, errors.Join(errs...)
}

// checkRecords says what is wrong with the directories of records.
func (o Options) checkRecords() error {
	var errs []error
	if o.RuntimeDir == "" && o.StateDir != "" {
		errs = append(errs, fmt.Errorf("StateDir is set and RuntimeDir is not: give both or neither: %w", volume.ErrInvalid))
	}
	if o.RuntimeDir != "" && o.StateDir != "" && filepath.Clean(o.RuntimeDir) == filepath.Clean(o.StateDir) {
		errs = append(errs, fmt.Errorf("RuntimeDir and StateDir are both %q: give two directories: %w", o.RuntimeDir, volume.ErrInvalid))
	}
	if o.NoRecords && o.RuntimeDir != "" {
		errs = append(errs, fmt.Errorf("NoRecords and RuntimeDir %q: give one of them: %w", o.RuntimeDir, volume.ErrInvalid))
	}
	for name, dir := range map[string]string{"RuntimeDir": o.RuntimeDir, "StateDir": o.StateDir} {
		if dir != "" && !filepath.IsAbs(dir) {
			errs = append(errs, fmt.Errorf("%s %q: give an absolute path: %w", name, dir, volume.ErrInvalid))
		}
	}
	return errors.Join(errs...)
}

// withRecords names the directories of records that were left out, below the root of the host.
func (o Options) withRecords(host volume.VolumeHost) Options {
	if o.NoRecords || o.RuntimeDir != "" {
		return o
	}
	records := filepath.Join(filepath.Dir(filepath.Clean(host.GetPodsDir())), "records")
	o.RuntimeDir, o.StateDir = filepath.Join(records, "mounts"), filepath.Join(records, "attachments")
	return o
}

// newRootLock returns a lock of the directory under which all volumes live. Where that is one of those that hold the records, which
// are locked in any case, it locks nothing. Where the volumes of the manager are no fake's, it makes the directory.
func newRootLock(host volume.VolumeHost, o Options) *rootlock.Lock {
	root := filepath.Dir(filepath.Clean(host.GetPodsDir()))
	if root == filepath.Clean(o.RuntimeDir) || root == filepath.Clean(o.StateDir) {
		return &rootlock.Lock{}
	}
	return &rootlock.Lock{Path: root, Make: mountwatch.IsKernel(o.Mounter) || o.Mounter == nil}
}
