package loopblock

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/freeze"
	"github.com/volumekit/volumekit/mount/image"
	"github.com/volumekit/volumekit/mount/loop"
	"github.com/volumekit/volumekit/volume"
)

// ErrTimeout says that a filesystem had to be thawed before its image was copied, since [Options].FreezeLimit was over. The
// incomplete copy was removed.
var ErrTimeout = errors.New("the copy takes longer than the filesystem may be frozen")

// defaultFreezeLimit is how long a filesystem stays frozen where [Options].FreezeLimit is zero.
const defaultFreezeLimit = 5 * time.Second

// freezingSuffix is that of the record of a volume that is being frozen. The process that does it has the record locked.
const freezingSuffix = ".freezing"

// frozenVolume is a frozen filesystem of a volume. While its root is open, it stays mounted.
type frozenVolume struct {
	handle string
	root   *os.File
	record *os.File
	frozen *freeze.Frozen
	begun  time.Time
	end    time.Time // when it is thawed at the latest
}

func (p *Plugin) freezeLimit() time.Duration {
	if p.options.FreezeLimit > 0 {
		return p.options.FreezeLimit
	}
	return defaultFreezeLimit
}

// freeze freezes all members that are staged. What is dirty in any of them is written before. Those that were frozen are
// returned with an error too.
func (t *taking) freeze(ctx context.Context, dir *image.Dir) ([]*frozenVolume, error) {
	var writers []*member
	for _, m := range t.members {
		if m.use == staged {
			writers = append(writers, m)
		}
	}
	for _, m := range writers {
		err := image.SyncFilesystem(t.plugin.mounts.stagingPath(m.source.handle))
		if err == nil {
			err = m.from.Sync() // what the loop device has written
		}
		if err != nil {
			return nil, err
		}
	}
	var frozen []*frozenVolume
	for _, m := range writers {
		f, err := t.plugin.freezeVolume(ctx, dir, m)
		if err != nil {
			return frozen, err
		}
		frozen = append(frozen, f)
	}
	return frozen, nil
}

// freezeVolume freezes a volume that is staged, and has that on record before.
func (p *Plugin) freezeVolume(ctx context.Context, dir *image.Dir, m *member) (*frozenVolume, error) {
	handle := m.source.handle
	if err := p.thawLeft(ctx, dir, handle); err != nil {
		return nil, err
	}
	staging := p.mounts.stagingPath(handle)
	root, err := os.Open(staging)
	if err != nil {
		return nil, err
	}
	there, mounted, err := p.mounts.at(ctx, staging)
	if err == nil && (!mounted || !m.device.IsMountedAs(there)) {
		err = fmt.Errorf("volume %q has just been unstaged: %w", handle, volume.ErrTransient)
	}
	if err != nil {
		return nil, errors.Join(err, root.Close())
	}
	f := &frozenVolume{handle: handle, root: root}
	if f.record, err = dir.Begin(handle + freezingSuffix); err != nil {
		return nil, errors.Join(err, root.Close())
	}
	f.begun = time.Now()
	if f.frozen, err = freeze.Freeze(root, p.freezeLimit()); err != nil {
		return nil, errors.Join(fmt.Errorf("freezing volume %q: %w", handle, err), f.close(dir))
	}
	f.end = time.Now().Add(p.freezeLimit())
	return f, nil
}

// thaw thaws the volume. An error that matches freeze.ErrThawed says that it was thawed too early. The record stays if the
// kernel refuses.
func (f *frozenVolume) thaw(dir *image.Dir) error {
	err := f.frozen.Thaw()
	if err != nil && !errors.Is(err, freeze.ErrThawed) {
		return errors.Join(fmt.Errorf("thawing volume %q: %w", f.handle, err), f.root.Close(), f.record.Close())
	}
	return errors.Join(err, f.close(dir))
}

// close removes the record of a volume that is not frozen.
func (f *frozenVolume) close(dir *image.Dir) error {
	return errors.Join(dir.Remove(f.handle+freezingSuffix, f.record), f.record.Close(), f.root.Close())
}

// thawLeft thaws a volume that a process that is gone may have left frozen. Without a record of it nothing is touched.
func (p *Plugin) thawLeft(ctx context.Context, dir *image.Dir, handle string) error {
	record, err := dir.LockLeftOver(handle + freezingSuffix)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer record.Close()
	staging := p.mounts.stagingPath(handle)
	there, mounted, err := p.mounts.at(ctx, staging)
	if err != nil {
		return err
	}
	if mounted && loop.IsMountOfAny(there) {
		root, err := os.Open(staging)
		if err != nil {
			return err
		}
		defer root.Close()
		was, err := freeze.ThawLeft(root)
		if err != nil {
			return err
		}
		if was {
			p.options.Logger.Warn("the volume was left frozen by a process that is gone, and was thawed", "volume", handle)
		}
	}
	return dir.Remove(handle+freezingSuffix, record)
}

// thawAllLeft is thawLeft for each volume with a record.
func (p *Plugin) thawAllLeft(ctx context.Context) {
	_, err := inImages(ctx, p, "search for frozen volumes", func(dir *image.Dir) (struct{}, error) {
		names, err := dir.Names()
		for _, name := range names {
			if handle, is := strings.CutSuffix(name, freezingSuffix); is {
				err = errors.Join(err, p.thawLeft(ctx, dir, handle))
			}
		}
		return struct{}{}, err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, mount.ErrTransient) {
		p.options.Logger.Warn("a volume may be frozen: thaw it with fsfreeze -u", "dir", p.devices.images.dir, "err", err)
	}
}

// thawBeforeUnmount is thawLeft for a volume that is to be unmounted: without its mount nobody could thaw it. The unmount goes on
// if the filesystem of the images does not answer, since a teardown is what helps then.
func (p *Plugin) thawBeforeUnmount(ctx context.Context, handle string) error {
	limited, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	_, err := inImages(limited, p, "search for a freeze of volume "+handle, func(dir *image.Dir) (struct{}, error) {
		return struct{}{}, p.thawLeft(limited, dir, handle)
	})
	switch {
	case errors.Is(err, mount.ErrTransient) && ctx.Err() == nil && limited.Err() == nil:
		return fmt.Errorf("a snapshot of volume %q is being made: %w: %w", handle, volume.ErrInUse, err)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		p.options.Logger.Warn("it is not known whether the volume was left frozen", "volume", handle, "err", err)
	}
	return nil
}
