package blockmap

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/descriptor"
	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/loop"
)

// device is the block device that is mapped. It is open without the right to read it.
type device struct {
	file *os.File
	rdev uint64
	// bound says that it was bound for the pod before.
	bound bool
}

// openDevice opens what is at path once; everything else is done to the descriptor.
func openDevice(path string) (device, error) {
	file, err := os.OpenFile(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return device{}, err
	}
	rdev, err := blockNumber(file)
	if err != nil {
		file.Close()
		return device{}, err
	}
	return device{file: file, rdev: rdev}, nil
}

// resolveDevice follows the links, and makes sure that they end at a block device.
func resolveDevice(path string) (string, error) {
	path, err := filepath.EvalSymlinks(path)
	if err != nil {
		return "", err
	}
	return path, checkBlock(path)
}

// checkBlock makes sure that a block device is at path itself.
func checkBlock(path string) error {
	d, err := openDevice(path)
	if err != nil {
		return err
	}
	return d.file.Close()
}

// blockNumber returns the number of the block device that a descriptor is of.
func blockNumber(file *os.File) (uint64, error) {
	var st unix.Stat_t
	if err := descriptor.Call(file, func(fd int) error { return unix.Fstat(fd, &st) }); err != nil {
		return 0, fmt.Errorf("fstat of %q: %w", file.Name(), err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFBLK {
		return 0, fmt.Errorf("%q: %w", file.Name(), ErrNotDevice)
	}
	return st.Rdev, nil
}

// proc is a path that leads to the very node of the descriptor.
func (d device) proc() string { return fmt.Sprintf("/proc/self/fd/%d", d.file.Fd()) }

// closeAfter closes the device, after the call that err says was lost has ended: it may still use the descriptor.
func (d device) closeAfter(err error) {
	var lost *mount.AbandonedError
	if !errors.As(err, &lost) {
		d.file.Close()
		return
	}
	go func() {
		<-lost.Done()
		d.file.Close()
	}()
}

func (m *Mapper) mapDevice(ctx context.Context, mapping Mapping) (err error) {
	d, err := openDevice(mapping.DevicePath)
	if err != nil {
		return err
	}
	defer func() { d.closeAfter(err) }()
	if d.bound, err = m.isBound(ctx, mapping, d.rdev); err != nil {
		return err
	}
	return m.steps(ctx, mapping, d)
}

// steps takes the three steps. The device is locked before it is probed, so that the program that mounts it sees the lock, or is seen. What was bound before is not undone.
func (m *Mapper) steps(ctx context.Context, mapping Mapping, d device) error {
	undo := func(cause error, step func(context.Context, Mapping) error) error {
		var lost *mount.AbandonedError
		if d.bound || errors.As(cause, &lost) {
			return cause
		}
		// The caller may have left, and what was done must go all the same.
		if err := step(context.WithoutCancel(ctx), mapping); err != nil {
			return fmt.Errorf("%w (%w: %w)", cause, mount.ErrUncertain, err)
		}
		return cause
	}
	if _, err := m.loops.HoldDevice(ctx, d.file, mapping.label()); err != nil {
		return err
	}
	if !d.bound {
		if err := m.probe(ctx, mapping, d); err != nil {
			return undo(err, m.unlock)
		}
		if err := m.bind(ctx, mapping, d); err != nil {
			return undo(err, m.unlock)
		}
	}
	if err := makeLink(mapping); err != nil {
		return undo(err, m.unbind)
	}
	return nil
}

// isBound reports whether the device is bound for the pod. Another one there is an error, unless the lock is gone that was made
// with its bind: then another process has detached that device, whatever has its number now, and the bind is removed.
func (m *Mapper) isBound(ctx context.Context, mapping Mapping, rdev uint64) (bool, error) {
	path := mapping.bindPath()
	mounted, err := m.mounter.IsMountPoint(ctx, path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil || !mounted {
		return false, err
	}
	err = checkBind(path, rdev)
	if errors.Is(err, mount.ErrForeign) && !errors.Is(err, ErrNotDevice) {
		locked, lockErr := m.isLocked(ctx, mapping)
		if lockErr != nil || locked {
			return false, errors.Join(err, lockErr)
		}
		return false, m.unbind(ctx, mapping)
	}
	return true, err
}

// isLocked reports whether there is a lock of the mapping, over whatever device.
func (m *Mapper) isLocked(ctx context.Context, mapping Mapping) (bool, error) {
	all, err := m.loops.Devices(ctx)
	if err != nil {
		return false, err
	}
	for _, d := range all {
		if d, err = m.awaitAnswer(ctx, d); err != nil {
			return false, err
		}
		if d.BackingRdev != 0 && d.Label == mapping.label() {
			return true, nil
		}
	}
	return false, nil
}

// checkBind makes sure that the node at path is the device of that number, or any block device when rdev is 0.
func checkBind(path string, rdev uint64) error {
	file, err := os.OpenFile(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	there, err := blockNumber(file)
	if errors.Is(err, ErrNotDevice) {
		return fmt.Errorf("%w: %w", mount.ErrForeign, err)
	}
	if err == nil && rdev != 0 && there != rdev {
		err = fmt.Errorf("device %d:%d is bound at %q, and not %d:%d: unmap it first: %w",
			unix.Major(there), unix.Minor(there), path, unix.Major(rdev), unix.Minor(rdev), mount.ErrForeign)
	}
	return err
}

// probe refuses a device that another program has opened alone. A pod that shares it may.
func (m *Mapper) probe(ctx context.Context, mapping Mapping, d device) error {
	shared, err := m.isShared(ctx, mapping.GlobalMapPath, d.rdev)
	if err != nil || shared {
		return err
	}
	opened, err := m.loops.DeviceOpened(ctx, d.proc())
	if err == nil && opened {
		err = fmt.Errorf("it is mounted, perhaps in another mount namespace, or otherwise claimed: release it first: %w: %w",
			loop.ErrInUse, unix.EBUSY)
	}
	return err
}

// isShared reports whether the device is mapped for another pod. Another device that is mapped for one is an error: the path of
// the volume leads elsewhere now, and its pods share one device.
func (m *Mapper) isShared(ctx context.Context, globalMapPath string, rdev uint64) (bool, error) {
	pods, err := m.mappedPods(ctx, globalMapPath)
	if err != nil {
		return false, err
	}
	shared := false
	for _, pod := range pods {
		err := checkBind(filepath.Join(globalMapPath, pod), rdev)
		switch {
		case err == nil:
			shared = true
		case errors.Is(err, ErrNotDevice), errors.Is(err, fs.ErrNotExist): // It is no device of the volume's.
		default:
			locked, lockErr := m.isLocked(ctx, Mapping{GlobalMapPath: globalMapPath, PodUID: pod})
			if lockErr != nil || locked {
				return false, errors.Join(err, lockErr)
			}
		}
	}
	return shared, nil
}

// bind shows the device at the pod's place, and looks whether it is there.
func (m *Mapper) bind(ctx context.Context, mapping Mapping, d device) error {
	path := mapping.bindPath()
	err := m.mounter.Mount(ctx, mount.Request{
		Source: d.proc(), Target: path, Options: []string{"bind", "nosuid", "noexec"},
	})
	if err != nil {
		return err
	}
	if err := checkBind(path, d.rdev); err != nil {
		undo := mount.UnmountPath(context.WithoutCancel(ctx), m.mounter, path, mount.UnmountOptions{})
		return errors.Join(err, undo)
	}
	return nil
}

func (m *Mapper) unmapDevice(ctx context.Context, mapping Mapping) error {
	if err := removeLink(mapping); err != nil {
		return err
	}
	return m.unbind(ctx, mapping)
}

// unbind removes the bind and then the lock.
func (m *Mapper) unbind(ctx context.Context, mapping Mapping) error {
	path := mapping.bindPath()
	mounted, err := m.mounter.IsMountPoint(ctx, path)
	if err == nil && mounted {
		err = checkBind(path, 0)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err == nil {
		if err := mount.UnmountPath(ctx, m.mounter, path, mount.UnmountOptions{}); err != nil {
			return err
		}
	}
	return m.unlock(ctx, mapping)
}

// unlock removes the lock, of which there may be two when two processes made it at once.
func (m *Mapper) unlock(ctx context.Context, mapping Mapping) error {
	all, err := m.loops.Devices(ctx)
	if err != nil {
		return err
	}
	for _, d := range all {
		if d, err = m.awaitAnswer(ctx, d); err != nil {
			return err
		}
		if d.BackingRdev == 0 || d.Label != mapping.label() {
			continue
		}
		if err := m.loops.Detach(ctx, d); err != nil {
			return err
		}
	}
	return nil
}

// awaitAnswer waits for a device that did not answer in time and may be a lock: one over a node of /dev, where nothing
// hangs, so that it was the machine that was slow. One that is free by now is the zero Device.
func (m *Mapper) awaitAnswer(ctx context.Context, d loop.Device) (loop.Device, error) {
	if !d.Silent || !strings.HasPrefix(d.BackingPath, "/dev/") {
		return d, nil
	}
	d, err := m.loops.Inspect(ctx, d.Path)
	if errors.Is(err, loop.ErrNotAttached) {
		return loop.Device{}, nil
	}
	return d, err
}

func (m *Mapper) mappedPods(ctx context.Context, globalMapPath string) ([]string, error) {
	dir, err := openDir(globalMapPath, nil)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	entries, err := dir.ReadDir(-1)
	if err != nil {
		return nil, err
	}
	var pods []string
	for _, entry := range entries {
		mounted, err := m.mounter.IsMountPoint(ctx, globalMapPath+"/"+entry.Name())
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		if err == nil && mounted {
			pods = append(pods, entry.Name())
		}
	}
	slices.Sort(pods)
	return pods, nil
}
