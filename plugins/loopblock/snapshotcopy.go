package loopblock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/volumekit/volumekit/mount/freeze"
	"github.com/volumekit/volumekit/mount/image"
	"github.com/volumekit/volumekit/volume"
)

// copyAll copies the images: first those that workloads may write to, while they are frozen, and then the unused ones. No process can
// write to an unused image until copyAll returns.
func (t *snapshotCreation) copyAll(ctx context.Context, dir *image.Dir) error {
	var written, unwritten []*member
	for _, m := range t.members {
		if m.use == unusedImage {
			unwritten = append(unwritten, m)
		} else {
			written = append(written, m)
		}
	}
	if err := t.copyFrozen(ctx, dir, written); err != nil {
		return err
	}
	return t.copyEach(ctx, unwritten)
}

// copyFrozen freezes the staged volumes, copies the members, and proves that the volumes stayed frozen meanwhile.
func (t *snapshotCreation) copyFrozen(ctx context.Context, dir *image.Dir, members []*member) (err error) {
	frozen, err := t.freeze(ctx, dir)
	defer func() {
		err = errors.Join(err, t.freezes.thawAll(dir, frozen))
		if errors.Is(err, freeze.ErrLimit) || errors.Is(err, ErrTimeout) {
			err = fmt.Errorf("%w: allow more than %v (Options.FreezeLimit), keep the images on xfs or btrfs, or end the pods that use the volumes: %w: %w",
				ErrTimeout, t.freezes.limit, volume.ErrInUse, err)
		}
	}()
	if err != nil {
		return err
	}
	if len(frozen) > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadlineCause(ctx, frozen[0].limit, ErrTimeout)
		defer cancel()
	}
	t.created = time.Now()
	return t.copyEach(ctx, members)
}

func (t *snapshotCreation) copyEach(ctx context.Context, members []*member) error {
	for _, m := range members {
		if err := t.copyWhole(ctx, m); err != nil {
			return fmt.Errorf("copying volume %q: %w", m.source.handle, err)
		}
	}
	return nil
}

// copyWhole is copy, but refuses an image whose filesystem needs the repair of its next staging.
func (t *snapshotCreation) copyWhole(ctx context.Context, m *member) error {
	if m.use == stagedImage || m.source.block {
		return t.copy(ctx, m)
	}
	return whileWhole(ctx, m.from, func() error { return t.copy(ctx, m) })
}

// copy fills the image of a snapshot.
func (t *snapshotCreation) copy(ctx context.Context, m *member) error {
	if m.use == attachedImage {
		if err := image.Sync(m.device.Path); err != nil {
			return err
		}
	}
	err := image.Share(m.to, m.from)
	if !errors.Is(err, errors.ErrUnsupported) {
		return err
	}
	if m.use == attachedImage {
		return errors.Join(fmt.Errorf("the device is in use: %w", volume.ErrInUse), err)
	}
	info, err := m.from.Stat()
	if err == nil {
		err = m.to.Truncate(info.Size())
	}
	if err != nil {
		return err
	}
	return image.CopyData(ctx, m.to, m.from, func(done, size int64) {
		if tell := t.progress; tell != nil {
			tell(CopyProgress{Volume: t.name, Source: m.source.handle, Done: done, Size: size})
		}
	})
}
