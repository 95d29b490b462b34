package loop

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

func attachFile(ctx context.Context, file *os.File, options Options) (Device, error) {
	id, err := identify(file)
	if err != nil {
		return Device{}, err
	}
	var device Device
	err = locked(ctx, file, func() (err error) {
		device, err = lookAndAttach(ctx, file, id, options)
		return err
	})
	if err != nil {
		return Device{}, fmt.Errorf("cannot attach %q: %w", file.Name(), err)
	}
	return device, nil
}

// lookAndAttach runs under the lock of the file.
func lookAndAttach(ctx context.Context, file *os.File, id identity, options Options) (Device, error) {
	device, err := findIdentity(ctx, id, file.Name())
	if err == nil {
		return device, fits(device, options)
	}
	if !errors.Is(err, ErrNotAttached) {
		return Device{}, err
	}
	// Whoever deletes the file holds the lock, too, so that this stays true until the end.
	if ok, err := named(file); err != nil || !ok {
		return Device{}, errors.Join(err, fmt.Errorf("%q was deleted: %w", file.Name(), fs.ErrNotExist))
	}
	mode := unix.O_RDWR
	if options.ReadOnly {
		mode = unix.O_RDONLY
	}
	backing, err := reopen(file, mode)
	if err != nil {
		return Device{}, err
	}
	defer backing.Close()
	return attachFree(ctx, attachment{backing: backing, id: id, mode: mode, options: options})
}

// fits says why a device that has the file already is not what is asked for.
func fits(device Device, options Options) error {
	switch {
	case device.ReadOnly && !options.ReadOnly:
		return fmt.Errorf("it is attached read-only to %s: detach that first: %w", device.Path, ErrInUse)
	case !device.ReadOnly && options.ReadOnly:
		return fmt.Errorf("it is attached for writing to %s: detach that first: %w", device.Path, ErrInUse)
	case !device.Whole():
		return fmt.Errorf("a part of it is attached to %s: detach that first: %w", device.Path, ErrInUse)
	case device.AutoClear:
		return fmt.Errorf("%s has it and is detached with its last close: unmount it and try again: %w", device.Path, ErrInUse)
	}
	return nil
}

// attachment is a file that is about to get a device.
type attachment struct {
	backing *os.File
	id      identity
	mode    int
	options Options
}

// errTaken says that somebody else was faster; the next device may do.
var errTaken = errors.New("taken by somebody else")

// attachFree tries free devices until one is ours. Between the kernel's answer and the attachment anybody can take the
// device, udev can hold it, and losetup can remove it.
func attachFree(ctx context.Context, a attachment) (Device, error) {
	wait := newWaiter()
	for range maxAttempt {
		if err := ctx.Err(); err != nil {
			return Device{}, context.Cause(ctx)
		}
		number, err := freeNumber()
		if err != nil {
			return Device{}, err
		}
		device, err := attachTo(number, a)
		if !errors.Is(err, errTaken) {
			return device, err
		}
		if err := wait.next(ctx); err != nil {
			return Device{}, err
		}
	}
	return Device{}, fmt.Errorf("%d free devices were taken by others first: try again: %w", maxAttempt, ErrNoDevice)
}

func attachTo(number int, a attachment) (Device, error) {
	node, err := openNode(number, a.mode)
	if isGone(err) || errors.Is(err, unix.EBUSY) {
		return Device{}, fmt.Errorf("%w: %w", errTaken, err)
	}
	if err != nil {
		return Device{}, err
	}
	defer node.Close()
	// The lock on the node keeps the detaching of what this device had before apart from what it gets now.
	if err := tryFlock(node); err != nil {
		return Device{}, fmt.Errorf("%w: %w", errTaken, err)
	}
	if err := configure(node, a); err != nil {
		return Device{}, err
	}
	device, attached, err := inspectNode(node, number)
	if err == nil && (!attached || device.BackingDevice != a.id.dev || device.BackingInode != a.id.ino) {
		return Device{}, fmt.Errorf("%s lost the file at once: %w", node.Name(), errTaken)
	}
	if err != nil {
		return Device{}, errors.Join(err, clearFile(node))
	}
	return device, nil
}

// configure gives the device the file in one step, or in two where the kernel is older than 5.8.
func configure(node *os.File, a attachment) error {
	err := control(node, func(fd int) error {
		return control(a.backing, func(backing int) error {
			config := unix.LoopConfig{Fd: uint32(backing), Size: a.options.SectorSize, Info: a.info()}
			return ignoringEINTR(func() error { return unix.IoctlLoopConfigure(fd, &config) })
		})
	})
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOTTY) || errors.Is(err, unix.ENOSYS) {
		err = configureInSteps(node, a)
	}
	return takenOr(node, err)
}

// takenOr sorts out the errors that another user of the device causes.
func takenOr(node *os.File, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EBUSY), errors.Is(err, unix.EAGAIN), isGone(err):
		return fmt.Errorf("%w: %w", errTaken, err)
	}
	return fmt.Errorf("cannot configure %s: %w", node.Name(), err)
}

func (a attachment) info() unix.LoopInfo64 {
	var info unix.LoopInfo64
	if a.options.ReadOnly {
		info.Flags |= unix.LO_FLAGS_READ_ONLY
	}
	if a.options.DirectIO {
		info.Flags |= unix.LO_FLAGS_DIRECT_IO
	}
	label := a.options.Label
	if label == "" {
		label = a.backing.Name()
	}
	copy(info.File_name[:len(info.File_name)-1], label)
	return info
}

// configureInSteps is for kernels without LOOP_CONFIGURE. A failure takes the file off again.
func configureInSteps(node *os.File, a attachment) error {
	return control(node, func(fd int) error {
		return control(a.backing, func(backing int) error {
			if err := unix.IoctlSetInt(fd, unix.LOOP_SET_FD, backing); err != nil {
				return err
			}
			if err := setStatus(fd, a); err != nil {
				return errors.Join(err, ioctlClear(fd))
			}
			return nil
		})
	})
}

func setStatus(fd int, a attachment) error {
	info := a.info()
	info.Flags &= unix.LOOP_SET_STATUS_SETTABLE_FLAGS // read-only comes from the mode of the descriptors
	if err := retryEAGAIN(func() error { return unix.IoctlLoopSetStatus64(fd, &info) }); err != nil {
		return fmt.Errorf("LOOP_SET_STATUS64: %w", err)
	}
	if size := a.options.SectorSize; size != 0 {
		if err := retryEAGAIN(func() error { return unix.IoctlSetInt(fd, unix.LOOP_SET_BLOCK_SIZE, int(size)) }); err != nil {
			return fmt.Errorf("LOOP_SET_BLOCK_SIZE: %w", err)
		}
	}
	if a.options.DirectIO {
		_ = unix.IoctlSetInt(fd, unix.LOOP_SET_DIRECT_IO, 1) // a wish: Device says what came of it
	}
	return nil
}

// retryEAGAIN repeats what the kernel refuses while pages of the device are still cached.
func retryEAGAIN(f func() error) error {
	var err error
	for range maxAttempt {
		if err = ignoringEINTR(f); !errors.Is(err, unix.EAGAIN) {
			return err
		}
	}
	return err
}

func whileDetached(ctx context.Context, file *os.File, do func() error) error {
	id, err := identify(file)
	if err != nil {
		return err
	}
	return locked(ctx, file, func() error {
		device, err := findIdentity(ctx, id, file.Name())
		if err == nil {
			return fmt.Errorf("%q is attached to %s: detach it first: %w", file.Name(), device.Path, ErrInUse)
		}
		if !errors.Is(err, ErrNotAttached) {
			return err
		}
		return do()
	})
}
