package loop

import (
	"context"
	"errors"
	"fmt"
	"os"
)

// The sentinels of this package. Match them with errors.Is; every one survives any wrapping. The errno of a failed
// system call is matched likewise: errors.Is(err, unix.EBUSY).
var (
	// ErrInUse says that a device is held by somebody, or that a file is attached otherwise than asked for. Nothing was
	// changed, except that [Detach] may already have told the kernel to detach the device with its last close.
	ErrInUse = errors.New("loop device in use")
	// ErrNotAttached says that no loop device has the file.
	ErrNotAttached = errors.New("not attached to a loop device")
	// ErrNotRegular says that the backing file is not a regular file.
	ErrNotRegular = errors.New("not a regular file")
	// ErrNoDevice says that no loop device can be had: the loop module is missing, the control device or the node of a
	// device is not there, or every device was taken by others time and again.
	ErrNoDevice = errors.New("no loop device available")
)

// Device is a loop device that was attached when it was looked at. It is a value: nothing is held open.
type Device struct {
	// Path is the absolute path of the device's node, such as "/dev/loop3".
	Path string
	// Number is the device's index: 3 in "/dev/loop3".
	Number int
	// Major and Minor are the device's number, as the mount table shows it.
	Major, Minor uint32
	// BackingDevice and BackingInode identify the backing file: st_dev, in the kernel's encoding, and st_ino.
	BackingDevice, BackingInode uint64
	// BackingPath is the absolute path of the backing file as the kernel knows it, without the mark of a deleted file.
	// It is for people and for files that have no name any more; it is empty when the kernel does not tell.
	BackingPath string
	// Deleted is true when the backing file has no name any more at BackingPath.
	Deleted bool
	// Label is what [Options] said, cut to 63 bytes.
	Label string
	// ReadOnly is true when the device refuses writes.
	ReadOnly bool
	// DirectIO is true when the device bypasses the page cache of the backing file.
	DirectIO bool
	// AutoClear is true when the kernel detaches the device with its last close.
	AutoClear bool
	// Offset and SizeLimit are the part of the file that the device shows, in bytes. Both are 0 for a whole file; this
	// package makes no others.
	Offset, SizeLimit uint64
}

// Whole reports whether the device shows its backing file from the first byte to the last.
func (d Device) Whole() bool { return d.Offset == 0 && d.SizeLimit == 0 }

// Has reports whether info, of a file that was opened or looked at without following a link, describes the backing file
// of d.
func (d Device) Has(info os.FileInfo) bool { return d.has(info) }

// Options says how to attach a file. The zero value attaches it for reading and writing, through the page cache, with
// the kernel's sector size.
type Options struct {
	// ReadOnly makes a device that refuses writes. The file is then opened for reading only.
	ReadOnly bool
	// DirectIO asks for a device that bypasses the page cache of the backing file, so that data is cached once and not
	// twice. It is a wish: a filesystem that cannot do it gives a device without it, as [Device] then says.
	DirectIO bool
	// SectorSize is the logical sector size of the device in bytes: 512, 1024, 2048 or 4096. Zero leaves it to the
	// kernel.
	SectorSize uint32
	// Label is kept by the kernel with the device (lo_file_name), where it can be found again when the file has no name
	// any more. Empty means the path of the file. What is longer than 63 bytes is cut.
	Label string
}

func (o Options) check() error {
	switch o.SectorSize {
	case 0, 512, 1024, 2048, 4096:
		return nil
	}
	return fmt.Errorf("sector size %d: use 512, 1024, 2048 or 4096: %w", o.SectorSize, os.ErrInvalid)
}

// Attach attaches the regular file at path, which is absolute and must not be a symbolic link, and returns its device.
// A file that is attached already, by anybody, is not attached again: its device is returned. When that device is
// read-only and options are not, or the reverse, when it shows only a part of the file, when it is about to be detached
// or when there is more than one, the error matches [ErrInUse] and the device is left as it is.
//
// A file that does not exist is an error that matches fs.ErrNotExist; one that is not regular matches [ErrNotRegular].
func Attach(ctx context.Context, path string, options Options) (Device, error) {
	file, err := openFile(path)
	if err != nil {
		return Device{}, err
	}
	defer file.Close()
	return AttachFile(ctx, file, options)
}

// AttachFile is [Attach] for a file that the caller opened, in whatever mode, and so anchored to that very file. The
// caller's descriptor is not kept. A file without a name any more is an error that matches fs.ErrNotExist.
func AttachFile(ctx context.Context, file *os.File, options Options) (Device, error) {
	if err := options.check(); err != nil {
		return Device{}, fmt.Errorf("cannot attach %q: %w", file.Name(), err)
	}
	return attachFile(ctx, file, options)
}

// Find returns the device of the regular file at path. One that is not attached is an error that matches
// [ErrNotAttached]; one that is attached to several devices matches [ErrInUse].
func Find(ctx context.Context, path string) (Device, error) {
	file, err := openFile(path)
	if err != nil {
		return Device{}, err
	}
	defer file.Close()
	return FindFile(ctx, file)
}

// FindFile is [Find] for a file that the caller opened, in whatever mode.
func FindFile(ctx context.Context, file *os.File) (Device, error) { return findFile(ctx, file) }

// Inspect returns what the loop device at path, such as "/dev/loop3", has now: it looks at that device alone. One that
// is free, gone or no loop device is an error that matches [ErrNotAttached].
func Inspect(ctx context.Context, path string) (Device, error) { return inspectPath(ctx, path) }

// Devices returns every attached loop device of the machine, whoever attached it, in the order of their numbers.
func Devices(ctx context.Context) ([]Device, error) { return devices(ctx) }

// Detach detaches device and proves it: nil says that the device is free, or has another backing file by now. A device
// that was detached before is no error. While somebody holds the device, a mount in any mount namespace included, the
// error matches [ErrInUse]; a later call finds out whether it is gone.
func Detach(ctx context.Context, device Device) error { return detach(ctx, device) }

// WhileDetached calls do while file, which the caller opened in whatever mode, is proven to be attached to no device
// and locked against [Attach]. It is for what must not happen to an attached file, such as deleting it. When the file is
// attached, do is not called and the error matches [ErrInUse]. Otherwise the error is that of do.
func WhileDetached(ctx context.Context, file *os.File, do func() error) error {
	return whileDetached(ctx, file, do)
}

// Opened reports whether the block device at path is claimed by a user who wants it alone: mounted in any mount
// namespace, part of another device, used as swap, or opened with O_EXCL. A path that is no block device, or is not
// there, is not claimed. A device that somebody merely reads is not claimed either. A symbolic link is followed.
func Opened(ctx context.Context, path string) (bool, error) { return opened(ctx, path) }

// DeviceUse tells by [Opened] whether a device is in use; it fits the executor's port of that name.
type DeviceUse struct{}

// DeviceOpened is [Opened].
func (DeviceUse) DeviceOpened(ctx context.Context, devicePath string) (bool, error) {
	return Opened(ctx, devicePath)
}
