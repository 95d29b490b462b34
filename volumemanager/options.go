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

// These are the defaults of [Options].
const (
	// defaultWaitTimeout bounds a wait for a pod's volumes. Kubelet waits as long.
	defaultWaitTimeout = 2*time.Minute + 3*time.Second
	// defaultResync is the mean time between two checks of every volume.
	defaultResync = 10 * time.Minute
	// defaultFilesystemCheckInterval is the time between two checks of a filesystem on a block device.
	defaultFilesystemCheckInterval = 30 * time.Second
)

// Options configures a manager. The zero value is the safest: the manager keeps records below the root, locks the root, and
// checks what plugins report against the mount table. It has no claims and no observer.
type Options struct {
	// Store has the claims and PersistentVolumes. Nil: a pod that uses a claim is refused.
	Store store.Store
	// AttachedBy says who attaches volumes to this node and detaches them. The zero value is [AttachedByNode].
	AttachedBy AttachedBy
	// VolumesInUse receives the list of volumes that this node uses, if a controller attaches volumes. Nil: the manager
	// writes the list to the status of the node's object in Store.
	VolumesInUse VolumesInUseReporter
	// Prober reports plugins that come and go while Run runs. A volume that no plugin serves is then no mistake: it waits
	// for its plugin. Nil: only the registered plugins are used.
	Prober volume.DynamicPluginProber
	// DeviceUse reports whether a device is still open before it is detached. Nil: the manager does not check.
	DeviceUse operationexecutor.DeviceUse
	// Mounter is the mounter of the program: give the *mount.Mounter that the plugins use. The manager checks plugins with
	// it: it detects a reported success without a mount, and a reported failure with one. A fake needs only the methods of
	// this interface. The manager uses further methods if it finds them:
	//
	//   - With a mount.Interface it binds the sub-paths of containers, and devices if BlockMapper is nil. Otherwise it does that with
	//     a mount.Mounter of its own, which does not know the abandoned calls of other mounters.
	//   - With a *mount.Mounter it notices changes that others make to the mounts of volumes, leaves foreign mounts alone, and
	//     reports data that may be lost before an unmount. See also MountTable and HungUnmount.
	//   - With CheckIDMappings, which a *mount.Mounter and a *fake.Mounter have, it proves that the owners in a volume can be mapped;
	//     see UserNamespaces. Otherwise it asks the kernel itself.
	//
	// Nil: a *mount.Mounter of the manager's own, which does not know the calls that the plugins' mounter has abandoned.
	Mounter operationexecutor.MountPoints
	// NoMountChecks says that plugins are trusted: the manager looks nothing up in the mount table. It is for plugins that
	// mount nothing: fakes, and measurements. Mounter must be nil then.
	NoMountChecks bool
	// BlockMapper binds and links the devices of block volumes. Nil: the kernel's devices, as [NewDeviceMapper] has them.
	BlockMapper operationexecutor.BlockMapper
	// Loops lists loop devices; a *loop.Manager does. A loop device is then an orphan if its file lies under the root and
	// neither a record nor a mount accounts for it; see Orphans. Nil: the manager ignores loop devices.
	Loops LoopDevices
	// SELinux returns the labels of containers; [ReadSELinuxLabels] returns those of the host's policy. Nil: SELinux is off,
	// and no volume is mounted with a label.
	SELinux SELinuxLabels
	// SELinuxMount says which volumes are mounted with the label of the containers that use them. Two pods with different
	// labels do not get such a volume at once: the second one waits, and its status names the pod that it waits for.
	SELinuxMount cache.SELinuxMount
	// Environment returns the variables of a container for a subPathExpr. Nil: the manager reads the variables from the pod,
	// and a variable from a config map, a secret or a resource is a [VariableError].
	Environment ContainerEnvironment
	// UserNamespaces returns the id mappings of pods with hostUsers: false, which ContainerMounts then returns with each mount.
	// Nil: ContainerMounts says nothing about user namespaces.
	UserNamespaces UserNamespaces
	// RecursiveReadOnly says that the kernel (Linux 5.12) and the container runtime can make a mount read-only with all
	// mounts beneath it. False: a container that requires this (recursiveReadOnly Enabled) gets no mounts.
	RecursiveReadOnly bool
	// Observer observes every operation. [operationexecutor.Observers] joins several; an [operationexecutor.ContextObserver] also
	// chooses the contexts of operations. It may be nil.
	Observer operationexecutor.Observer
	// Recorder records the events of pods and volumes. Nil: events are dropped.
	Recorder volume.EventRecorder
	// Logger logs what happens outside operations. Nil: nothing is logged.
	Logger *slog.Logger

	// RuntimeDir is the absolute path of a directory for the records of mounts, which do not outlive a boot: use a tmpfs
	// such as /run/agent. Run makes it if it is missing, and locks it. Because the records are trusted, Run refuses a
	// directory that belongs to another user than its own or root, or that others may write to. Empty: records/mounts below
	// the root of the plugins' host.
	RuntimeDir string
	// StateDir is the absolute path of a directory for the records of attachments, which may outlive a boot. It must be on a
	// disk; every write is synced. Run makes, locks and refuses it like RuntimeDir. Empty: attachments are recorded in
	// RuntimeDir, and thus forgotten when the machine reboots; if RuntimeDir is empty too, in records/attachments below the
	// root.
	StateDir string
	// NoRecords says that the manager keeps no records. A manager that starts after a crash then does not know what the
	// earlier one has left mounted. It is for tests on fakes, and for a program whose mounts end with it, in a mount
	// namespace of its own. RuntimeDir and StateDir must be empty then.
	NoRecords bool

	// HungUnmount says what the manager does when the teardown of a volume hangs. The zero value only reports it.
	HungUnmount HungUnmount
	// Orphans says what the manager does with unrecorded mounts, directories and loop devices under the root. With NoRecords
	// it does not look for them.
	Orphans OrphanPolicy

	// Resync is the mean time between two checks of every volume, which find changes without an event. Each interval is
	// jittered by a tenth. Zero means ten minutes; less than zero turns the checks off.
	Resync time.Duration
	// FilesystemCheckInterval is the time between two checks of each filesystem on a block device that a volume has: the kernel
	// reports no event when one fails. A check costs some system calls and reads nothing from the device; without such
	// volumes there are none. If an ext4 has new complaints, the manager syncs it to find out whether a write has failed.
	// Other filesystems are synced at the resync and at the teardown. Zero means 30 seconds; less than zero
	// turns the checks off.
	FilesystemCheckInterval time.Duration
	// WaitTimeout bounds a wait whose context has no deadline. Zero means two minutes and three seconds, as kubelet waits.
	WaitTimeout time.Duration
	// Backoff is how long an operation waits after a failure. The zero value is that of Kubernetes: half a second, doubled
	// each time, at most two minutes and two seconds.
	Backoff operationexecutor.Backoff
	// Timeouts bounds operations. The zero value means the executor's defaults.
	Timeouts operationexecutor.Timeouts
	// PluginTimeouts bounds the operations of single plugins, by plugin name. A zero field means the bound of Timeouts.
	PluginTimeouts map[string]operationexecutor.Timeouts
	// HungPerPlugin is how many calls of one plugin may hang. While so many hang, the manager makes no more calls of that
	// plugin. Zero means the executor's default.
	HungPerPlugin int
	// WorkersPerPlugin is how many operations of one plugin run at once. Zero means the executor's default.
	WorkersPerPlugin int
}

// MountTable is an optional interface of [Options].Mounter; a *mount.Mounter has it. With it the manager records the
// identity of each mount, and compares the records with the mount table at its start. Without it the manager knows only the
// records.
type MountTable interface {
	// List returns the mount table.
	List(ctx context.Context) ([]mount.MountPoint, error)
	// Lookup returns the facts of the uppermost mount at path. If there is none, the error matches mount.ErrNotMounted. It
	// never waits for the filesystem there.
	Lookup(ctx context.Context, path string) (mount.MountPoint, error)
}

// withMounter sets the default of Mounter.
func (o Options) withMounter() Options {
	if o.Mounter == nil && !o.NoMountChecks {
		o.Mounter = mount.New(mount.Options{Logger: o.Logger})
	}
	return o
}

// binder returns the mounter that binds sub-paths and devices.
func (o Options) binder() mount.Interface {
	if mounter, ok := o.Mounter.(mount.Interface); ok {
		return mounter
	}
	return mount.New(mount.Options{Logger: o.Logger})
}

// withDefaults sets the defaults, and returns an error for wrong options.
func (o Options) withDefaults(binder mount.Interface) (Options, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Resync == 0 {
		o.Resync = defaultResync
	}
	if o.FilesystemCheckInterval == 0 {
		o.FilesystemCheckInterval = defaultFilesystemCheckInterval
	}
	if o.WaitTimeout == 0 {
		o.WaitTimeout = defaultWaitTimeout
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

// checkRecords returns an error for wrong directories of records.
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

// withRecords sets the defaults of the directories of records: below the root of the host.
func (o Options) withRecords(host volume.VolumeHost) Options {
	if o.NoRecords || o.RuntimeDir != "" {
		return o
	}
	records := filepath.Join(filepath.Dir(filepath.Clean(host.GetPodsDir())), "records")
	o.RuntimeDir, o.StateDir = filepath.Join(records, "mounts"), filepath.Join(records, "attachments")
	return o
}

// newRootLock returns the lock of the directory above all volumes. If that directory also holds records, their lock locks it. The
// lock makes a missing directory, unless the mounter is a fake.
func newRootLock(host volume.VolumeHost, o Options) *rootlock.Lock {
	root := filepath.Dir(filepath.Clean(host.GetPodsDir()))
	if root == filepath.Clean(o.RuntimeDir) || root == filepath.Clean(o.StateDir) {
		return &rootlock.Lock{Path: root, HasRecords: true}
	}
	return &rootlock.Lock{Path: root, Make: mountwatch.IsKernel(o.Mounter) || o.Mounter == nil}
}
