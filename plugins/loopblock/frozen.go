package loopblock

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/freeze"
	"github.com/volumekit/volumekit/mount/image"
	"github.com/volumekit/volumekit/mount/loop"
	"github.com/volumekit/volumekit/volume"
)

// ErrTimeout says that a filesystem was thawed before its image was copied, because [Options].FreezeLimit had passed.
// The incomplete copy was removed.
var ErrTimeout = errors.New("the copy takes longer than the filesystem may be frozen")

// defaultFreezeLimit is the default of [Options].FreezeLimit.
const defaultFreezeLimit = 5 * time.Second

// frozenSuffix is the suffix of the record of a volume that is being frozen. The freezing process holds a lock of the
// record. No suffix of a volume's files is longer, and a handle leaves room for that.
const frozenSuffix = ".frozen"

// frozenVolume is a frozen filesystem of a volume. While its root is open, it stays mounted.
type frozenVolume struct {
	handle string
	root   *os.File
	record *os.File
	frozen *freeze.Frozen
	begun  time.Time
	limit  time.Time // the latest time of its thaw

	// Once it was thawed:
	thawed error
	lasted time.Duration
}

// freezes freezes staged volumes with a record of each, and thaws those that an ended process has left frozen. It keeps
// nothing in memory.
type freezes struct {
	mounts *mounts
	// limit is the longest time for which a filesystem stays frozen.
	limit  time.Duration
	logger *slog.Logger
}

func (z *freezes) images() images { return z.mounts.devices.images }

// freeze freezes all staged members. It syncs all of them first. With an error it also returns those that are frozen.
func (t *snapshotCreation) freeze(ctx context.Context, dir *image.Dir) ([]*frozenVolume, error) {
	var writers []*member
	for _, m := range t.members {
		if m.use == stagedImage {
			writers = append(writers, m)
		}
	}
	for _, m := range writers {
		err := image.SyncFilesystem(t.mounts.stagingPath(m.source.handle))
		if err == nil {
			err = m.from.Sync() // what the loop device has written
		}
		if err != nil {
			return nil, err
		}
	}
	var frozen []*frozenVolume
	for _, m := range writers {
		f, err := t.freezes.freezeVolume(ctx, dir, m)
		if err != nil {
			return frozen, err
		}
		frozen = append(frozen, f)
	}
	return frozen, nil
}

// freezeVolume records and freezes a staged volume.
func (z *freezes) freezeVolume(ctx context.Context, dir *image.Dir, m *member) (*frozenVolume, error) {
	handle := m.source.handle
	if err := z.thawAbandoned(ctx, dir, handle); err != nil {
		return nil, err
	}
	root, there, err := z.mounts.openStaged(ctx, handle)
	if err != nil && !errors.Is(err, mount.ErrNotMounted) {
		return nil, err
	}
	if err != nil {
		return nil, fmt.Errorf("volume %q has just been unstaged: %w: %w", handle, volume.ErrTransient, err)
	}
	if !m.device.IsMountedAs(there) {
		err := fmt.Errorf("volume %q has just been staged from another device: %w", handle, volume.ErrTransient)
		return nil, errors.Join(err, root.Close())
	}
	f := &frozenVolume{handle: handle, root: root}
	if f.record, err = dir.Begin(handle + frozenSuffix); err != nil {
		return nil, errors.Join(err, root.Close())
	}
	f.begun = time.Now()
	if f.frozen, err = freeze.Freeze(root, z.limit); err != nil {
		return nil, errors.Join(fmt.Errorf("freezing volume %q: %w", handle, err), f.close(dir))
	}
	f.limit = time.Now().Add(z.limit)
	return f, nil
}

// thawAll thaws all volumes before it does anything else: no writer waits for a record. An error that matches
// freeze.ErrThawed says that one was thawed too early. If the kernel refuses to thaw one, its record stays.
func (z *freezes) thawAll(dir *image.Dir, frozen []*frozenVolume) error {
	var errs []error
	for _, f := range slices.Backward(frozen) {
		f.thawed = f.frozen.Thaw()
		f.lasted = time.Since(f.begun)
	}
	for _, f := range frozen {
		errs = append(errs, f.end(dir))
		z.logger.Info("the volume was frozen", "volume", f.handle, "for", f.lasted)
	}
	return errors.Join(errs...)
}

// end returns the result of the thaw, and removes the record unless the volume may still be frozen.
func (f *frozenVolume) end(dir *image.Dir) error {
	if f.thawed != nil && !errors.Is(f.thawed, freeze.ErrThawed) {
		return errors.Join(fmt.Errorf("thawing volume %q: %w", f.handle, f.thawed), f.root.Close(), f.record.Close())
	}
	return errors.Join(f.thawed, f.close(dir))
}

// close removes the record of a volume that is not frozen.
func (f *frozenVolume) close(dir *image.Dir) error {
	return errors.Join(dir.Remove(f.handle+frozenSuffix, f.record), f.record.Close(), f.root.Close())
}

// thawAbandoned thaws a volume that an ended process may have left frozen. It does not touch a volume without such a record.
func (z *freezes) thawAbandoned(ctx context.Context, dir *image.Dir, handle string) error {
	record, err := dir.LockLeftOver(handle + frozenSuffix)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer record.Close()
	root, _, err := z.mounts.openStaged(ctx, handle)
	if errors.Is(err, mount.ErrNotMounted) {
		return z.forgetUnmounted(ctx, dir, handle, record)
	}
	if err != nil {
		return err
	}
	defer root.Close()
	was, err := freeze.ThawLeft(root)
	if err != nil {
		return err
	}
	if was {
		z.logger.Warn("the volume was left frozen by a process that is gone, and was thawed", "volume", handle)
	}
	return dir.Remove(handle+frozenSuffix, record)
}

// forgetUnmounted removes the record of a volume that is not staged, if nothing of it can be frozen. A frozen filesystem outlives
// its last mount, and keeps the loop device: the record stays for the next staging, which mounts the same filesystem.
func (z *freezes) forgetUnmounted(ctx context.Context, dir *image.Dir, handle string, record *os.File) error {
	_, err := z.mounts.devices.find(ctx, handle)
	if errors.Is(err, loop.ErrNotAttached) {
		return dir.Remove(handle+frozenSuffix, record)
	}
	if errors.Is(err, loop.ErrInUse) { // of several devices
		return nil
	}
	return err
}

// thawStaged is thawAbandoned for a volume that was just found staged: its filesystem may have been left frozen and then
// unmounted. During the creation of a snapshot it does nothing.
func (z *freezes) thawStaged(ctx context.Context, handle string) error {
	_, err := inImages(ctx, z.images(), "search for a freeze of volume "+handle, func(dir *image.Dir) (struct{}, error) {
		return struct{}{}, z.thawAbandoned(ctx, dir, handle)
	})
	if errors.Is(err, mount.ErrTransient) && ctx.Err() == nil || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// thawAllAbandoned is thawAbandoned for each volume with a record.
func (z *freezes) thawAllAbandoned(ctx context.Context) {
	_, err := inImages(ctx, z.images(), "search for frozen volumes", func(dir *image.Dir) (struct{}, error) {
		names, err := dir.Names()
		for _, name := range names {
			handle, is := strings.CutSuffix(name, frozenSuffix)
			if !is {
				continue
			}
			if left := z.thawAbandoned(ctx, dir, handle); !errors.Is(left, mount.ErrTransient) { // as that of a snapshot being made
				err = errors.Join(err, left)
			}
		}
		return struct{}{}, err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		z.logger.Warn("a volume may be frozen: thaw it with fsfreeze -u", "dir", z.images().dir, "error", err)
	}
}

// thawBeforeUnmount is thawAbandoned for a volume before its unmount: without its mount it cannot be thawed. If the
// filesystem of the images does not answer, the unmount continues, because a teardown is what helps then.
func (z *freezes) thawBeforeUnmount(ctx context.Context, handle string) error {
	limited, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	_, err := inImages(limited, z.images(), "search for a freeze of volume "+handle, func(dir *image.Dir) (struct{}, error) {
		return struct{}{}, z.thawAbandoned(limited, dir, handle)
	})
	switch {
	case errors.Is(err, mount.ErrTransient) && ctx.Err() == nil && limited.Err() == nil:
		return fmt.Errorf("a snapshot of volume %q is being made: %w: %w", handle, volume.ErrInUse, err)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		z.logger.Warn("it is not known whether the volume was left frozen", "volume", handle, "error", err)
	}
	return nil
}
