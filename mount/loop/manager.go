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
	// Logger logs the end of an abandoned call. Nil discards.
	Logger *slog.Logger
	// MaxAbandoned is the number of abandoned calls at which the Manager starts no further call; each keeps a thread.
	// Zero means mount.DefaultMaxAbandoned.
	MaxAbandoned int
}

// Manager attaches and detaches loop devices. Make one with [New] and keep it: it remembers the file of each device,
// and scans all devices again only after another program has changed one. It holds nothing open. Two Managers, in one
// process or in two, keep the same promises as one. Its methods may be called from several goroutines at once.
//
// Each method returns when its context ends, even if a system call on a dead filesystem hangs. The error is then a
// *mount.AbandonedError, which matches mount.ErrUncertain and whose Done reports the end of the call. Until then calls
// about the same file or device fail with mount.ErrStuck. The error of a call that did not start matches
// mount.ErrTransient.
type Manager struct {
	calls     *abandonable.Calls
	nodes     *nodes
	inspector inspector
	index     index
	changes   *changes
}

// New returns a Manager. It does no I/O.
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

// Abandoned returns the abandoned calls that have not ended.
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

// Attach attaches the regular file at path, and returns its device. path is absolute and must not be a symbolic link.
// If any program has attached the file already, Attach returns that device. The error matches [ErrInUse], and Attach
// changes no device, in these cases: the device is read-only and options are not, or the reverse; it shows another part
// of the file; it is about to be detached; the file has more than one device.
//
// For a missing file the error matches fs.ErrNotExist, for one that is not regular [ErrNotRegular].
func (m *Manager) Attach(ctx context.Context, path string, options AttachOptions) (Device, error) {
	if err := options.check(); err != nil {
		return Device{}, attachError(path, err)
	}
	return abandonable.Value(ctx, m.calls, change(path), func(ctx context.Context) (Device, error) {
		device, err := withPath(ctx, path, func(h handle) (Device, error) { return m.attach(ctx, h, options) })
		return device, attachError(path, err)
	})
}

// AttachFile is [Manager.Attach] for a file that the caller opened, in any mode: it attaches exactly this file. It does
// not keep the caller's descriptor. If the file has no name any more, the error matches fs.ErrNotExist.
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

// Find returns the device of the regular file at path. If the file is not attached, the error matches [ErrNotAttached];
// if it has several devices, [ErrInUse].
func (m *Manager) Find(ctx context.Context, path string) (Device, error) {
	return abandonable.Value(ctx, m.calls, look(path), func(ctx context.Context) (Device, error) {
		return withPath(ctx, path, func(h handle) (Device, error) { return m.index.find(ctx, h) })
	})
}

// FindFile is [Manager.Find] for a file that the caller opened, in any mode.
func (m *Manager) FindFile(ctx context.Context, file *os.File) (Device, error) {
	return abandonable.Value(ctx, m.calls, look(file.Name()), func(ctx context.Context) (Device, error) {
		return withHandle(file, func(h handle) (Device, error) { return m.index.find(ctx, h) })
	})
}

// Inspect returns the present state of the loop device at path, such as "/dev/loop3". It reads only that device. If the
// device is free, missing or no loop device, the error matches [ErrNotAttached].
func (m *Manager) Inspect(ctx context.Context, path string) (Device, error) {
	return m.inspector.at(ctx, path)
}

// Devices returns every attached loop device of the machine, also those of other programs, sorted by number. If a
// device does not answer because its backing filesystem hangs, it is returned as Silent, with its known fields.
func (m *Manager) Devices(ctx context.Context) ([]Device, error) { return m.index.devices(ctx) }

// Resize expands the device of the regular file at path to the size of the file, or to its size limit, and returns the
// device. It is no error if the device has that size already. If the file has become smaller, the error matches
// [ErrShrink]; if it is not attached, [ErrNotAttached]. Users of the device see its new size at once.
func (m *Manager) Resize(ctx context.Context, path string) (Device, error) {
	return abandonable.Value(ctx, m.calls, change(path), func(ctx context.Context) (Device, error) {
		return withPath(ctx, path, func(h handle) (Device, error) { return m.resize(ctx, h) })
	})
}

// ResizeFile is [Manager.Resize] for a file that the caller opened, in any mode.
func (m *Manager) ResizeFile(ctx context.Context, file *os.File) (Device, error) {
	return abandonable.Value(ctx, m.calls, change(file.Name()), func(ctx context.Context) (Device, error) {
		return withHandle(file, func(h handle) (Device, error) { return m.resize(ctx, h) })
	})
}

// Tuning holds properties that can change while a device is in use. A nil field leaves its property unchanged.
type Tuning struct {
	// DirectIO says whether the device bypasses the page cache of the backing file. The next attachment has the value
	// of its [AttachOptions].
	DirectIO *bool
	// ReadAhead is the kernel's read-ahead in bytes, a multiple of the page size. Open files keep their value. A newer
	// kernel computes its own value at each attachment. An older kernel keeps the value after a detachment, for any
	// file that the device gets next.
	ReadAhead *int64
}

// DefaultReadAhead is the initial read-ahead in bytes on a kernel that keeps the value of a device after a detachment.
const DefaultReadAhead = 128 << 10

// TuneFile changes properties of the device of a file that the caller opened, in any mode, and returns the device's new
// state. If the file is not attached, the error matches [ErrNotAttached]. If the filesystem of the file does not
// support direct I/O, the error matches mount.ErrUnsupported, and nothing was changed.
func (m *Manager) TuneFile(ctx context.Context, file *os.File, tuning Tuning) (Device, error) {
	return abandonable.Value(ctx, m.calls, change(file.Name()), func(ctx context.Context) (Device, error) {
		return withHandle(file, func(h handle) (Device, error) { return m.tune(ctx, h, tuning) })
	})
}

// Detach detaches device and proves it: nil says that the device is free, or has another backing file by now. It is no
// error if the device was detached before. If another user has claimed the device, for example by a mount in any mount
// namespace, Detach changes nothing. If other programs only have it open, Detach tells the kernel to detach it at the
// last close, and waits for that for about a second. After that the error also matches mount.ErrUncertain, and a later
// call finds out. Both errors are an [*InUseError], which matches [ErrInUse] and unix.EBUSY.
//
// The backing file need not have a name any more, nor its content.
func (m *Manager) Detach(ctx context.Context, device Device) error {
	return m.calls.Do(ctx, change(device.Path), func(ctx context.Context) error { return m.detach(ctx, device) })
}

// WhileDetached calls do while file is proven to have no device and [Manager.Attach] cannot attach it. The caller
// opened the file in any mode. Use it for work that must not happen to an attached file, such as its deletion. If the
// file is attached, WhileDetached does not call do, and the error matches [ErrInUse]. Otherwise the error is that of
// do.
func (m *Manager) WhileDetached(ctx context.Context, file *os.File, do func() error) error {
	return m.calls.Do(ctx, change(file.Name()), func(ctx context.Context) error { return m.whileNot(ctx, file, func(Device) bool { return true }, do) })
}

// WhileUnwritten is [Manager.WhileDetached], but allows read-only devices: while do runs, no program writes to file
// through a device of this package. Use it to copy the file.
func (m *Manager) WhileUnwritten(ctx context.Context, file *os.File, do func() error) error {
	written := func(d Device) bool { return !d.ReadOnly }
	return m.calls.Do(ctx, change(file.Name()), func(ctx context.Context) error { return m.whileNot(ctx, file, written, do) })
}

// HoldDevice prevents the number of a block device, and its name, from being given to another device. It puts a
// read-only loop device over the device, which stays when this process ends. device is open in any mode. It is no error
// if a loop device with this label holds the device already. [Manager.Detach] ends the hold. A later
// [Manager.DeviceOpened] sees every mount that was made in [Manager.WhileUnheld] before. The size and the content of
// the device do not matter; HoldDevice reads and writes nothing.
func (m *Manager) HoldDevice(ctx context.Context, device *os.File, label string) (Device, error) {
	return abandonable.Value(ctx, m.calls, change(device.Name()), func(ctx context.Context) (Device, error) {
		held, err := withHandle(device, func(h handle) (Device, error) { return m.hold(ctx, h, label) })
		if err != nil {
			return Device{}, fmt.Errorf("cannot hold device %q: %w", device.Name(), err)
		}
		return held, nil
	})
}

// WhileUnheld calls do while no loop device is over the block device at path, its disk or a part of it.
// [Manager.HoldDevice] waits meanwhile. Use it to mount or format a device that no pod may hold as a raw device
// meanwhile. Devices are compared by their numbers; WhileUnheld follows a symbolic link. If the device is held,
// WhileUnheld does not call do, and the error matches [ErrInUse] and unix.EBUSY. Otherwise the error is that of do. do
// runs in the caller's goroutine, and WhileUnheld waits for it.
func (m *Manager) WhileUnheld(ctx context.Context, path string, do func() error) error {
	return m.whileUnheld(ctx, path, do)
}

// DeviceOpened reports whether the block device at path is in exclusive use: it is mounted in any mount namespace, part of
// another device, used as swap, or opened with O_EXCL. A missing path, or one that is no block device, is not. A device that a
// program only reads is not either. DeviceOpened follows a symbolic link. It implements the executor's port DeviceUse.
func (m *Manager) DeviceOpened(ctx context.Context, path string) (bool, error) {
	return abandonable.Value(ctx, m.calls, look(path), func(ctx context.Context) (bool, error) { return opened(ctx, path) })
}

// AwaitReleased waits until the block device at path is not in exclusive use, in the sense of [Manager.DeviceOpened], or is
// mounted in any mount namespace. It reports whether it is mounted. Some programs use a device exclusively for a moment: those
// that look for a free loop device, and those that check the filesystem, even after the process that started them has ended.
// If the use lasts longer than some seconds, the error matches [ErrInUse] and unix.EBUSY.
func (m *Manager) AwaitReleased(ctx context.Context, path string) (mounted bool, err error) {
	return abandonable.Value(ctx, m.calls, look(path), func(ctx context.Context) (bool, error) { return awaitReleased(ctx, path) })
}

// DeviceUse implements the executor's port DeviceUse for a program that has no Manager.
type DeviceUse struct{}

// DeviceOpened is [Manager.DeviceOpened].
func (DeviceUse) DeviceOpened(ctx context.Context, devicePath string) (bool, error) {
	return New(Options{}).DeviceOpened(ctx, devicePath)
}
