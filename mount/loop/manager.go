package loop

import (
	"context"
	"fmt"
	"log/slog"
	"os"

	"github.com/volumekit/volumekit/internal/abandonable"
	"github.com/volumekit/volumekit/mount"
)

// Options configures a [Manager]. The zero value is ready to use.
type Options struct {
	// Logger gets a line when an abandoned call has ended at last. Nil discards it.
	Logger *slog.Logger
	// MaxAbandoned is the number of abandoned calls at which no further call is started; each keeps a thread. Zero means
	// mount.DefaultMaxAbandoned.
	MaxAbandoned int
}

// Manager attaches and detaches. Make one with [New] and keep it: it remembers which device has which file. So it need not
// look at all devices again while no other program has changed one. It holds nothing open, and two of them, in one process
// or in two, keep the same promises as one. Its methods may be called from several goroutines at once.
//
// Each method returns when its context ends, also while a system call on a dead filesystem does not: the error is then a
// *mount.AbandonedError, which matches mount.ErrUncertain and whose Done says when the call has ended. Until then calls about
// the same file or device fail with mount.ErrStuck. A call that did not begin matches mount.ErrTransient.
type Manager struct {
	calls     *abandonable.Calls
	nodes     *nodes
	inspector inspector
	index     index
	changes   *changes
}

// New returns a Manager. It does nothing yet.
func New(options Options) *Manager {
	if options.MaxAbandoned <= 0 {
		options.MaxAbandoned = mount.DefaultMaxAbandoned
	}
	calls := abandonable.New(abandonable.Options{Max: options.MaxAbandoned, Logger: options.Logger, Stuck: mount.ErrStuck})
	nodes, rows := &nodes{rdevs: map[int]uint64{}}, newRows()
	inspector := inspector{nodes: nodes, calls: calls}
	return &Manager{
		calls: calls, nodes: nodes, inspector: inspector, index: newIndex(rows, inspector), changes: newChanges(rows, nodes),
	}
}

// Abandoned returns the calls that were abandoned and have not ended.
func (m *Manager) Abandoned() []mount.AbandonedCall {
	var all []mount.AbandonedCall
	for _, c := range m.calls.Abandoned() {
		all = append(all, mount.AbandonedCall{Call: c.Name, Path: c.Path})
	}
	return all
}

// change and look are the keys of calls about a path.
func change(path string) abandonable.Key { return abandonable.Key{Path: path} }

func look(path string) abandonable.Key { return abandonable.Key{Look: true, Path: path} }

// Attach attaches the regular file at path, which is absolute and must not be a symbolic link, and returns its device.
// A file that is attached already, by anybody, is not attached again: its device is returned. When that device is
// read-only and options are not, or the reverse, when it shows another part of the file, when it is about to be detached
// or when there is more than one, the error matches [ErrInUse] and the devices are left as they are.
//
// A file that does not exist is an error that matches fs.ErrNotExist; one that is not regular matches [ErrNotRegular].
func (m *Manager) Attach(ctx context.Context, path string, options AttachOptions) (Device, error) {
	if err := options.check(); err != nil {
		return Device{}, attachError(path, err)
	}
	return abandonable.Value(ctx, m.calls, change(path), func(ctx context.Context) (Device, error) {
		device, err := withPath(ctx, path, func(h handle) (Device, error) { return m.attach(ctx, h, options) })
		return device, attachError(path, err)
	})
}

// AttachFile is [Manager.Attach] for a file that the caller opened, in whatever mode, and so anchored to that very file.
// The caller's descriptor is not kept. A file without a name any more is an error that matches fs.ErrNotExist.
func (m *Manager) AttachFile(ctx context.Context, file *os.File, options AttachOptions) (Device, error) {
	if err := options.check(); err != nil {
		return Device{}, attachError(file.Name(), err)
	}
	return abandonable.Value(ctx, m.calls, change(file.Name()), func(ctx context.Context) (Device, error) {
		device, err := withHandle(file, func(h handle) (Device, error) { return m.attach(ctx, h, options) })
		return device, attachError(file.Name(), err)
	})
}

func attachError(path string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("cannot attach %q: %w", path, err)
}

// Find returns the device of the regular file at path. One that is not attached is an error that matches
// [ErrNotAttached]; one that is attached to several devices matches [ErrInUse].
func (m *Manager) Find(ctx context.Context, path string) (Device, error) {
	return abandonable.Value(ctx, m.calls, look(path), func(ctx context.Context) (Device, error) {
		return withPath(ctx, path, func(h handle) (Device, error) { return m.index.find(ctx, h) })
	})
}

// FindFile is [Manager.Find] for a file that the caller opened, in whatever mode.
func (m *Manager) FindFile(ctx context.Context, file *os.File) (Device, error) {
	return abandonable.Value(ctx, m.calls, look(file.Name()), func(ctx context.Context) (Device, error) {
		return withHandle(file, func(h handle) (Device, error) { return m.index.find(ctx, h) })
	})
}

// Inspect returns what the loop device at path, such as "/dev/loop3", has now: it looks at that device alone. One that
// is free, gone or no loop device is an error that matches [ErrNotAttached].
func (m *Manager) Inspect(ctx context.Context, path string) (Device, error) {
	return m.inspector.at(ctx, path)
}

// Devices returns every attached loop device of the machine, also those of other programs, in the order of their numbers.
// If a device does not answer, because its backing filesystem hangs, it is returned as Silent, with what is known of it.
func (m *Manager) Devices(ctx context.Context) ([]Device, error) { return m.index.devices(ctx) }

// Resize makes the device of the regular file at path as large as the file has become, or as its size limit allows, and
// returns the device. That it has that size already is no error. A file that has become smaller is an error that matches
// [ErrShrink]; one that is attached nowhere matches [ErrNotAttached]. Whoever uses the device sees its new size at once.
func (m *Manager) Resize(ctx context.Context, path string) (Device, error) {
	return abandonable.Value(ctx, m.calls, change(path), func(ctx context.Context) (Device, error) {
		return withPath(ctx, path, func(h handle) (Device, error) { return m.resize(ctx, h) })
	})
}

// ResizeFile is [Manager.Resize] for a file that the caller opened, in whatever mode.
func (m *Manager) ResizeFile(ctx context.Context, file *os.File) (Device, error) {
	return abandonable.Value(ctx, m.calls, change(file.Name()), func(ctx context.Context) (Device, error) {
		return withHandle(file, func(h handle) (Device, error) { return m.resize(ctx, h) })
	})
}

// Tuning are properties of a device that can change while it is in use. Nil leaves one as it is.
type Tuning struct {
	// DirectIO says whether the device bypasses the page cache of the backing file. The next attachment has what its
	// [AttachOptions] say.
	DirectIO *bool
	// ReadAhead is how many bytes the kernel reads ahead, a multiple of the page size; files that are open keep what they had.
	// A newer kernel computes its own when a file is attached. An older kernel keeps it when the device is detached, for whatever file it gets next.
	ReadAhead *int64
}

// DefaultReadAhead is how many bytes a kernel reads ahead that keeps the read-ahead of a device when it is detached.
const DefaultReadAhead = 128 << 10

// TuneFile changes properties of the device of a file that the caller opened, in whatever mode, and returns the device as it is
// then. A file that is attached nowhere is an error that matches [ErrNotAttached]. Direct I/O that the filesystem of the file
// cannot do matches mount.ErrUnsupported; nothing was changed then.
func (m *Manager) TuneFile(ctx context.Context, file *os.File, tuning Tuning) (Device, error) {
	return abandonable.Value(ctx, m.calls, change(file.Name()), func(ctx context.Context) (Device, error) {
		return withHandle(file, func(h handle) (Device, error) { return m.tune(ctx, h, tuning) })
	})
}

// Detach detaches device and proves it: nil says that the device is free, or has another backing file by now. A device that
// was detached before is no error. While another user has claimed the device, which includes a mount in any mount
// namespace, Detach changes nothing. While other programs merely have it open, the kernel is told to detach it with the
// last close, and Detach waits for that for about a second. After that the error matches mount.ErrUncertain too, and a
// later call finds out. Both errors are an [*InUseError], which matches [ErrInUse] and unix.EBUSY.
//
// It is of no importance whether the backing file still has a name, or its bytes.
func (m *Manager) Detach(ctx context.Context, device Device) error {
	return m.calls.Do(ctx, change(device.Path), func(ctx context.Context) error { return m.detach(ctx, device) })
}

// WhileDetached calls do while file, which the caller opened in whatever mode, is proven to be attached to no device
// and locked against [Manager.Attach]. It is for what must not happen to an attached file, such as deleting it. When the
// file is attached, do is not called and the error matches [ErrInUse]. Otherwise the error is that of do.
func (m *Manager) WhileDetached(ctx context.Context, file *os.File, do func() error) error {
	return m.calls.Do(ctx, change(file.Name()), func(ctx context.Context) error { return m.whileNot(ctx, file, func(Device) bool { return true }, do) })
}

// WhileUnwritten is [Manager.WhileDetached] that allows read-only devices: while do runs, no program writes to file through
// a device of this package. Use it to copy the file.
func (m *Manager) WhileUnwritten(ctx context.Context, file *os.File, do func() error) error {
	written := func(d Device) bool { return !d.ReadOnly }
	return m.calls.Do(ctx, change(file.Name()), func(ctx context.Context) error { return m.whileNot(ctx, file, written, do) })
}

// HoldDevice keeps the number of a block device, and with it its name, from being given to another one: a read-only loop
// device over it, which stays when this process ends. device is open in whatever mode; that label holds it already is no
// error. [Manager.Detach] ends it. Whoever looks with [Manager.DeviceOpened] afterwards whether the device is mounted sees what was
// mounted in [Manager.WhileUnheld]. The size and the content of the device do not matter, and nothing is read or written.
func (m *Manager) HoldDevice(ctx context.Context, device *os.File, label string) (Device, error) {
	return abandonable.Value(ctx, m.calls, change(device.Name()), func(ctx context.Context) (Device, error) {
		held, err := withHandle(device, func(h handle) (Device, error) { return m.hold(ctx, h, label) })
		if err != nil {
			return Device{}, fmt.Errorf("cannot hold device %q: %w", device.Name(), err)
		}
		return held, nil
	})
}

// WhileUnheld calls do while no loop device is over the block device at path, the disk that it is a part of or a part of it, and while
// [Manager.HoldDevice] waits. It is for mounting and formatting what nobody may have without a filesystem meanwhile. Devices
// are compared by their numbers; a symbolic link is followed. When it is held, do is not called and the error matches [ErrInUse]
// and unix.EBUSY. Otherwise the error is that of do, which runs in the caller's goroutine and is waited for.
func (m *Manager) WhileUnheld(ctx context.Context, path string, do func() error) error {
	return m.whileUnheld(ctx, path, do)
}

// DeviceOpened reports whether the block device at path is claimed by an exclusive user: mounted in any mount namespace,
// part of another device, used as swap, or opened with O_EXCL. A path that is missing, or is no block device, is not
// claimed. A device that a program merely reads is not claimed either. A symbolic link is followed. DeviceOpened fits the
// executor's port DeviceUse.
func (m *Manager) DeviceOpened(ctx context.Context, path string) (bool, error) {
	return abandonable.Value(ctx, m.calls, look(path), func(ctx context.Context) (bool, error) { return opened(ctx, path) })
}

// AwaitUnclaimed waits until the block device at path is not claimed, in the sense of [Manager.DeviceOpened], or is mounted
// in any mount namespace, which it reports. Some programs claim a device for a moment: those that look for a free loop
// device, and those that check the filesystem, even after the process that started them has ended. If a claim lasts longer
// than some seconds, the error matches [ErrInUse] and unix.EBUSY.
func (m *Manager) AwaitUnclaimed(ctx context.Context, path string) (mounted bool, err error) {
	return abandonable.Value(ctx, m.calls, look(path), func(ctx context.Context) (bool, error) { return awaitUnclaimed(ctx, path) })
}

// DeviceUse tells like [Manager.DeviceOpened] whether a device is in use, for a program that has no Manager.
type DeviceUse struct{}

// DeviceOpened is [Manager.DeviceOpened].
func (DeviceUse) DeviceOpened(ctx context.Context, devicePath string) (bool, error) {
	return New(Options{}).DeviceOpened(ctx, devicePath)
}
