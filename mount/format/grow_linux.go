package format

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/abandonable"
	"github.com/volumekit/volumekit/internal/descriptor"
	"github.com/volumekit/volumekit/mount"
)

// expansion is one filesystem that is to fill its device.
type expansion struct {
	file *os.File
	geometry
	deviceSize int64
}

func grow(ctx context.Context, file *os.File, options GrowOptions) (GrowResult, error) {
	g, err := expansionOf(ctx, file)
	if err != nil {
		return GrowResult{}, err
	}
	if options.MountPath != "" {
		return g.online(ctx, options.MountPath)
	}
	return g.offline(ctx, recovery{})
}

// growUnmounted is grow of what is mounted nowhere, and keeps what is at work.
func growUnmounted(ctx context.Context, file *os.File, r recovery) (GrowResult, error) {
	g, err := expansionOf(ctx, file)
	if err != nil {
		return GrowResult{}, err
	}
	return g.offline(ctx, r)
}

func measure(ctx context.Context, file *os.File) (Room, error) {
	g, err := expansionOf(ctx, file)
	return Room{Filesystem: g.size(), Device: g.deviceSize}, err
}

// expansionOf reads what is there.
func expansionOf(ctx context.Context, file *os.File) (expansion, error) {
	abandonable.Note(ctx, "read")
	found, err := probe(ctx, file)
	if err != nil {
		return expansion{}, err
	}
	g := expansion{file: file}
	if g.geometry, err = geometryOf(file, found.Type); err != nil {
		return expansion{}, err
	}
	if g.deviceSize, err = file.Seek(0, io.SeekEnd); err != nil {
		return expansion{}, fmt.Errorf("cannot find out the size of the device: %w", err)
	}
	return g, nil
}

// offline grows what is not mounted.
func (g expansion) offline(ctx context.Context, r recovery) (GrowResult, error) {
	if done, err := g.isDone(); done || err != nil {
		return g.result(g.geometry), err
	}
	if g.fsType == "xfs" || g.fsType == "btrfs" {
		return GrowResult{}, fmt.Errorf("%s grows only while it is mounted: %w", g.fsType, mount.ErrNotMounted)
	}
	if err := checkNotInUse(g.file); err != nil {
		return GrowResult{}, err
	}
	moves, err := movesBlocks(g.file, g.geometry, g.deviceSize)
	if err != nil {
		return GrowResult{}, err
	}
	if moves {
		return GrowResult{}, fmt.Errorf("it would have to move blocks, and be lost if that was broken off: grow it while it is mounted: %w", mount.ErrUnsupported)
	}
	if _, err := r.check(ctx, g.file, preenAll); err != nil { // as resize2fs wants it
		return GrowResult{}, err
	}
	if err := g.resize(ctx, r); err != nil {
		return GrowResult{}, err
	}
	after, err := geometryOf(g.file, g.fsType)
	if err != nil {
		return GrowResult{}, err
	}
	return g.verified(after)
}

// resize runs resize2fs on a filesystem that was checked. What is kept stays where that may have left something to repair.
func (g expansion) resize(ctx context.Context, r recovery) error {
	before, err := readAt(g.file, extSuperblock, extSuperblockSize)
	if err != nil {
		return err
	}
	if err := r.set(ctx, g.file.Name(), before); err != nil {
		return err
	}
	if err := run(ctx, "resize2fs", "e2fsprogs", nil, g.file); err != nil {
		return g.undo(ctx, r, before, err)
	}
	// Of some of what it could not write resize2fs does not tell.
	if _, err := checkExt(ctx, g.file, []string{"-f", "-n"}); err != nil {
		return g.undo(ctx, r, before, fmt.Errorf("after resize2fs: %w", err))
	}
	return r.remove(ctx)
}

// undo makes a filesystem whole on which resize2fs has failed with cause. Where nothing is kept it stays as it is.
func (g expansion) undo(ctx context.Context, r recovery, before []byte, cause error) error {
	after, err := readAt(g.file, extSuperblock, extSuperblockSize)
	switch {
	case err != nil:
	case bytes.Equal(before, after): // It was refused.
		return errors.Join(fmt.Errorf("%w: %w", ErrNotGrown, cause), r.remove(ctx))
	case r.store != nil && ctx.Err() == nil:
		if _, err = r.repair(ctx, g.file, before); err == nil {
			return errors.Join(g.repaired(cause), r.remove(ctx))
		}
	}
	return errors.Join(fmt.Errorf("%w: %w", mount.ErrUncertain, cause), err)
}

// repaired returns the error of an expansion that failed with cause and was repaired: none where it had come far enough for that to
// be its end.
func (g expansion) repaired(cause error) error {
	after, err := geometryOf(g.file, g.fsType)
	if err == nil && after.reaches(g.deviceSize) {
		return nil
	}
	return errors.Join(fmt.Errorf("%w: %w", ErrNotGrown, cause), err)
}

// isDone reports whether there is nothing to do, since the filesystem ends with the last whole block of the device.
func (g expansion) isDone() (bool, error) {
	if g.size() > g.deviceSize {
		return false, fmt.Errorf("the filesystem has %d bytes and the device %d: make the device larger: %w",
			g.size(), g.deviceSize, ErrShrink)
	}
	return g.blocks == g.deviceSize/g.block, nil
}

func (g expansion) result(after geometry) GrowResult {
	return GrowResult{Before: g.size(), After: after.size()}
}

// verified compares what is there with what was asked for: the word of a tool or of the kernel is not enough.
func (g expansion) verified(after geometry) (GrowResult, error) {
	if after.size() < g.size() || !after.reaches(g.deviceSize) {
		return g.result(after), fmt.Errorf("the filesystem had %d bytes, has %d and should have %d: %w",
			g.size(), after.size(), g.deviceSize, mount.ErrUncertain)
	}
	return g.result(after), nil
}

// checkNotInUse makes sure that a device is mounted nowhere, not even in another mount namespace.
func checkNotInUse(file *os.File) error {
	info, err := file.Stat()
	if err != nil || info.Mode().IsRegular() {
		return err
	}
	exclusive, err := reopen(file, unix.O_RDONLY|unix.O_EXCL)
	if errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("it is mounted, perhaps in another mount namespace, or opened exclusively: say where it is mounted: %w: %w",
			ErrInUse, err)
	}
	if err != nil {
		return err
	}
	return exclusive.Close()
}

// reopen opens the very device again, under the same name.
func reopen(file *os.File, flags int) (again *os.File, err error) {
	err = descriptor.Call(file, func(fd int) error {
		fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), flags|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		if err == nil {
			again = os.NewFile(uintptr(fd), file.Name())
		}
		return err
	})
	return again, err
}
