package loop

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/abandonable"
)

func (m *Manager) attach(ctx context.Context, h handle, options AttachOptions) (Device, error) {
	return locked(ctx, h, func(f backing) (Device, error) {
		var device Device
		var err error
		for range maxVanished {
			device, err = m.attachLocked(ctx, f, options)
			if !errors.Is(err, errTaken) {
				return device, err
			}
		}
		return Device{}, fmt.Errorf("%w: %w", ErrInUse, err)
	})
}

// maxVanished is how many times in a row another program may detach the file's device during Attach.
const maxVanished = 8

// locked calls do while it holds the lock on the backing file, which excludes every other user of this package.
func locked[T any](ctx context.Context, h handle, do func(backing) (T, error)) (T, error) {
	st, err := statRegular(ctx, h)
	if err != nil {
		return *new(T), err
	}
	unlock, err := lock(ctx, h)
	if err != nil {
		return *new(T), err
	}
	defer unlock()
	if err := abandonable.Begin(ctx, "statx"); err != nil {
		return *new(T), err
	}
	f, err := currentBacking(h, st) // the values may have changed before the lock
	if err != nil {
		return *new(T), err
	}
	return do(f)
}

// attachLocked attaches the file, or finds its device. The caller holds the lock of the file.
func (m *Manager) attachLocked(ctx context.Context, f backing, options AttachOptions) (Device, error) {
	if !m.index.isKnown() {
		if err := m.index.catchUp(ctx, 0); err != nil {
			return Device{}, err
		}
	}
	found, err := m.index.having(f)
	if err != nil {
		return Device{}, err
	}
	if len(found) > 0 {
		return m.reuse(ctx, f, options)
	}
	// A program that deletes the file through this package holds the lock too, so this stays true until the end.
	if f.links == 0 {
		return Device{}, fmt.Errorf("it was deleted: %w", fs.ErrNotExist)
	}
	a := attachment{file: f, mode: unix.O_RDWR, options: options, sole: true}
	if options.ReadOnly {
		a.mode = unix.O_RDONLY
	}
	return m.attachFree(ctx, a)
}

// reuse returns the device that the file has already, if it fits the options.
func (m *Manager) reuse(ctx context.Context, f backing, options AttachOptions) (Device, error) {
	if err := m.index.catchUp(ctx, 0); err != nil {
		return Device{}, err
	}
	found, err := m.index.having(f)
	if err != nil {
		return Device{}, err
	}
	if len(found) > 1 {
		found = m.dropOwn(ctx, found, options.Label)
	}
	switch len(found) {
	case 0:
		return Device{}, fmt.Errorf("its device was detached meanwhile: %w", errTaken)
	case 1:
		return found[0], fits(found[0], options)
	}
	return Device{}, severalError(found)
}

// dropOwn detaches devices that an earlier call of this package attached beside another program's device, before its
// process was killed. These are devices with the caller's label that are not in exclusive use. It returns the devices that remain.
func (m *Manager) dropOwn(ctx context.Context, found []Device, label string) []Device {
	var others, left []Device
	for _, d := range found {
		if label == "" || !d.MayBeLabelled(label) {
			others = append(others, d)
		}
	}
	if len(others) == 0 {
		return found
	}
	for _, d := range found {
		own := label != "" && d.MayBeLabelled(label)
		if !own || m.detach(ctx, d) != nil {
			left = append(left, d)
		}
	}
	return left
}

// fits returns why the file's existing device does not fit the options, or nil.
func fits(device Device, options AttachOptions) error {
	switch {
	case device.ReadOnly && !options.ReadOnly:
		return fmt.Errorf("it is attached read-only to %s: detach that first: %w", device.Path, ErrInUse)
	case !device.ReadOnly && options.ReadOnly:
		return fmt.Errorf("it is attached for writing to %s: detach that first: %w", device.Path, ErrInUse)
	case device.Offset != options.Offset || device.SizeLimit != options.SizeLimit:
		return fmt.Errorf("another part of it (offset %d, size limit %d) is attached to %s: detach that first: %w",
			device.Offset, device.SizeLimit, device.Path, ErrInUse)
	case device.AutoClear:
		return fmt.Errorf("%s has it and is detached with its last close: unmount it and try again: %w", device.Path, ErrInUse)
	}
	return nil
}

// attachment is a file that is about to get a device.
type attachment struct {
	file    backing
	mode    int
	options AttachOptions
	sole    bool // no other device may have the file
}

// errTaken says that another program was faster. The next device may be free.
var errTaken = errors.New("taken by another process")

// attachFree tries free devices until one is attached. Between the kernel's answer and the attachment, another program can
// take the device, udev can hold it, and losetup can remove it.
func (m *Manager) attachFree(ctx context.Context, a attachment) (Device, error) {
	backing, err := a.file.reopen(a.mode)
	if err != nil {
		return Device{}, err
	}
	defer backing.close()
	a.file.handle = backing
	wait := newWaiter()
	for range maxAttempt {
		if err := abandonable.Begin(ctx, "LOOP_CONFIGURE"); err != nil {
			return Device{}, context.Cause(ctx)
		}
		device, err := m.attachOnce(ctx, a)
		if !errors.Is(err, errTaken) {
			return device, err
		}
		if err := wait.next(ctx); err != nil {
			return Device{}, err
		}
	}
	return Device{}, fmt.Errorf("%d free devices were taken by others first: try again: %w", maxAttempt, ErrNoDevice)
}

// attachOnce attaches the file to a device that is free now, and proves that no other device has the file.
func (m *Manager) attachOnce(ctx context.Context, a attachment) (Device, error) {
	device, node, err := m.changes.attach(ctx, a)
	if err != nil {
		return Device{}, err
	}
	if !a.sole || m.index.isSole(device, a.file.id) {
		node.close()
		return device, nil
	}
	// The file has a device from here on, so the check must run even if the caller has left.
	return m.proveSole(context.WithoutCancel(ctx), a, device, node)
}

// proveSole checks whether another device has the file too. It opens its own device with O_EXCL meanwhile, so no program can
// mount it, and detaches it if another one has the file. It closes node, which keeps the file on the device until then.
func (m *Manager) proveSole(ctx context.Context, a attachment, device Device, node handle) (Device, error) {
	if exclusive, err := m.openExclusively(ctx, device.Number); err == nil {
		node.close()
		node = exclusive
	}
	defer node.close()
	if err := m.index.catchUp(ctx, device.DiskSeq); err != nil {
		return Device{}, errors.Join(err, undoAttach(ctx, node, device))
	}
	found, err := m.index.having(a.file)
	if err == nil && len(found) == 1 && found[0].Number == device.Number {
		return device, nil
	}
	if undo := undoAttach(ctx, node, device); err != nil || undo != nil {
		return Device{}, errors.Join(err, undo)
	}
	return m.reuse(ctx, a.file, a.options)
}

// undoAttach detaches a device that this call has attached and still has open. Until all other programs have closed the device,
// the file stays on it and could be mounted. So undoAttach keeps it open with O_EXCL until then.
func undoAttach(ctx context.Context, node handle, device Device) error {
	wait := newWaiter()
	err := clearFile(node)
	for range maxDetachChecks {
		if isGone(err) {
			return nil
		}
		if err != nil || !node.exclusive || wait.next(ctx) != nil {
			break
		}
		err = clearAgain(node, device)
	}
	return fmt.Errorf("cannot undo the attachment of %s: detach it: %w", device.Path, &InUseError{Path: device.Path, Pending: true})
}

// whileNot locks the file and calls do, unless refused reports true for one of the file's devices.
func (m *Manager) whileNot(ctx context.Context, file *os.File, refused func(Device) bool, do func() error) error {
	_, err := withHandle(file, func(h handle) (struct{}, error) {
		return locked(ctx, h, func(f backing) (struct{}, error) {
			if err := m.index.catchUp(ctx, 0); err != nil {
				return struct{}{}, err
			}
			found, err := m.index.having(f)
			if at := slices.IndexFunc(found, refused); err == nil && at >= 0 {
				err = fmt.Errorf("%q is attached to %s: detach it first: %w", f.name, found[at].Path, ErrInUse)
			}
			if err != nil {
				return struct{}{}, err
			}
			if err := abandonable.Begin(ctx, "function of the caller"); err != nil {
				return struct{}{}, err
			}
			return struct{}{}, do()
		})
	})
	return err
}
