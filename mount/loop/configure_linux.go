package loop

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// errNotInOneStep says that the kernel is older than 5.8, or refuses the request.
var errNotInOneStep = errors.New("not in one step")

// configureNode attaches the file to the device with one call.
func configureNode(node handle, a attachment) error {
	config := unix.LoopConfig{Fd: uint32(a.file.fd), Size: a.options.SectorSize, Info: a.info()}
	err := ignoringEINTR(func() error { return unix.IoctlLoopConfigure(node.fd, &config) })
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOTTY) || errors.Is(err, unix.ENOSYS) {
		return fmt.Errorf("%w: %w", errNotInOneStep, err)
	}
	return err
}

// takenOr makes the errors that another user of the device causes match errTaken. It returns other errors unchanged.
func takenOr(err error) error {
	if errors.Is(err, unix.EBUSY) || errors.Is(err, unix.EAGAIN) || isGone(err) {
		return fmt.Errorf("%w: %w", errTaken, err)
	}
	return err
}

func (a attachment) info() unix.LoopInfo64 {
	info := unix.LoopInfo64{Offset: a.options.Offset, Sizelimit: a.options.SizeLimit}
	if a.options.ReadOnly {
		info.Flags |= unix.LO_FLAGS_READ_ONLY
	}
	if a.options.DirectIO {
		info.Flags |= unix.LO_FLAGS_DIRECT_IO
	}
	label := a.options.Label
	if label == "" {
		label = a.file.name
	}
	copy(info.File_name[:], KeptLabel(label))
	return info
}

// configureInSteps is for kernels without LOOP_CONFIGURE. If a step fails, it detaches the file again.
func configureInSteps(node handle, a attachment) error {
	if err := unix.IoctlSetInt(node.fd, unix.LOOP_SET_FD, a.file.fd); err != nil {
		return err
	}
	if err := setStatus(node.fd, a); err != nil {
		return errors.Join(err, clearFile(node))
	}
	return nil
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
		_ = unix.IoctlSetInt(fd, unix.LOOP_SET_DIRECT_IO, 1) // a request; Device has the result
	}
	return nil
}

// retryEAGAIN repeats a call that the kernel refuses while pages of the device are cached.
func retryEAGAIN(f func() error) error {
	var err error
	for range maxAttempt {
		if err = ignoringEINTR(f); !errors.Is(err, unix.EAGAIN) {
			return err
		}
	}
	return err
}

// clearFile tells the kernel to detach the file, now or at the last close.
func clearFile(node handle) error {
	return ignoringEINTR(func() error { return unix.IoctlSetInt(node.fd, unix.LOOP_CLR_FD, 0) })
}

// clearAgain checks whether the first clearFile has detached the file: then its error matches [isGone]. It clears again
// and does not read the device's state, because others may have the device open and wait for a dead filesystem. This is
// safe: the device is open with O_EXCL, and since long before Linux 5.15 no program can attach a file to such a device.
// Without sequence numbers it only reads the state.
func clearAgain(node handle, device Device) error {
	if device.DiskSeq != 0 {
		return clearFile(node)
	}
	_, err := status(node)
	return err
}
