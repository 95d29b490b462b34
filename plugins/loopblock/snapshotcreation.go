package loopblock

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/format"
	"github.com/volumekit/volumekit/mount/image"
	"github.com/volumekit/volumekit/mount/loop"
	"github.com/volumekit/volumekit/volume"
)

// snapshotCreation creates the snapshots of one name: of one volume, or of a group.
type snapshotCreation struct {
	*snapshots
	name    string
	group   bool
	members []*member // by handle
	created time.Time
}

// member is one volume of a snapshot that is being created.
type member struct {
	source   source
	from, to *os.File
	use      use
	device   loop.Device // zero for an unused image
}

// use is the kind of writer that an image may have.
type use uint8

const (
	unusedImage   use = iota // no writer; an Attach waits until the snapshot is made
	stagedImage              // the staged filesystem, which can be frozen
	attachedImage            // a program that has opened the device, and cannot be stopped
)

// make returns the record of the name. It creates a missing one, with its snapshots.
func (t *snapshotCreation) make(ctx context.Context) (snapshotRecord, error) {
	record, err := inImages(ctx, t.mounts.devices.images, "snapshot "+t.name, func(dir *image.Dir) (snapshotRecord, error) {
		record, err := t.existing(dir)
		if !errors.Is(err, fs.ErrNotExist) {
			return record, err
		}
		lock, err := dir.Begin(t.name + lockSuffix)
		if err != nil {
			return snapshotRecord{}, err
		}
		defer lock.Close()
		record, err = t.existing(dir) // another process may have made it since
		if errors.Is(err, fs.ErrNotExist) {
			record, err = t.makeLocked(ctx, dir, lock)
		}
		// This does nothing after the rename.
		return record, errors.Join(err, dir.Remove(t.name+lockSuffix, lock))
	})
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w: %w", volume.ErrNotFound, err)
	}
	return record, err
}

// existing returns the record of the name. If the record has other volumes, the error is a *volume.SnapshotSourceError.
func (t *snapshotCreation) existing(dir *image.Dir) (snapshotRecord, error) {
	record, err := readRecord(dir, t.name)
	if err != nil {
		return snapshotRecord{}, err
	}
	if wanted := t.sources(); record.Group != t.group || !slices.Equal(record.sources(), wanted) {
		return snapshotRecord{}, &volume.SnapshotSourceError{Name: t.name, Has: record.sources(), Wanted: wanted}
	}
	return record, dir.Sync() // an earlier process may have been killed before the sync
}

func (t *snapshotCreation) sources() []string {
	var handles []string
	for _, m := range t.members {
		handles = append(handles, m.source.handle)
	}
	return handles
}

// makeLocked creates the images, and then renames the locked file to the record. If it fails, no image is left.
func (t *snapshotCreation) makeLocked(ctx context.Context, dir *image.Dir, lock *os.File) (snapshotRecord, error) {
	if err := deleteImages(dir, t.name); err != nil {
		return snapshotRecord{}, err
	}
	record := snapshotRecord{Version: snapshotVersion, Name: t.name, ID: rand.Text(), Group: t.group}
	err := t.makeImages(ctx, dir, &record)
	if err == nil {
		err = record.write(dir, lock)
	}
	if err != nil {
		return snapshotRecord{}, errors.Join(err, deleteImages(dir, t.name))
	}
	if err := dir.Publish(t.name+lockSuffix, t.name+recordSuffix); err != nil {
		return snapshotRecord{}, t.afterFailedPublish(dir, lock, err)
	}
	// The record exists, but it may not survive a power cut. The next call finds it and syncs again.
	return record, volume.Uncertain(dir.Sync())
}

// afterFailedPublish deletes the images if the record provably has its incomplete name. A failed rename may still have
// taken effect, for example on a disk with errors: then the snapshot exists, and the next call finds it.
func (t *snapshotCreation) afterFailedPublish(dir *image.Dir, lock *os.File, err error) error {
	kept, isErr := dir.Is(t.name+lockSuffix, lock)
	if isErr != nil || !kept {
		return volume.Uncertain(errors.Join(err, isErr))
	}
	return errors.Join(err, deleteImages(dir, t.name))
}

func (t *snapshotCreation) makeImages(ctx context.Context, dir *image.Dir, record *snapshotRecord) error {
	for i, m := range t.members {
		file, err := dir.Create(record.imageName(i))
		if err != nil {
			return err
		}
		defer file.Close()
		m.to = file
	}
	err := t.hold(ctx, t.members, func() error { return t.copyAll(ctx, dir) })
	var lost *mount.AbandonedError
	if errors.As(err, &lost) {
		<-lost.Done() // it still writes
	}
	if err != nil {
		return err
	}
	record.Created = t.created
	for _, m := range t.members {
		described, err := m.finish(ctx)
		if err != nil {
			return fmt.Errorf("the copy of volume %q: %w", m.source.handle, err)
		}
		record.Members = append(record.Members, described)
	}
	return nil
}

// hold opens the images of rest and calls do. No program writes to them meanwhile, unless they are attached writable.
func (t *snapshotCreation) hold(ctx context.Context, rest []*member, do func() error) error {
	if len(rest) == 0 {
		return do()
	}
	m := rest[0]
	_, err := withImage(ctx, t.mounts.devices.images, m.source.handle, func(from *os.File) (struct{}, error) {
		m.from = from
		return struct{}{}, t.holdOpen(ctx, m, func() error { return t.hold(ctx, rest[1:], do) })
	})
	return err
}

func (t *snapshotCreation) holdOpen(ctx context.Context, m *member, next func() error) error {
	loops, entered := t.mounts.devices.loops, false
	err := loops.WhileUnwritten(ctx, m.from, func() error {
		entered = true
		return next()
	})
	if !errors.Is(err, loop.ErrInUse) || entered {
		return err
	}
	if err := t.findUse(ctx, m); err != nil {
		return err
	}
	return next()
}

// findUse finds out what uses a volume that is attached writable. It is an error if the volume cannot be copied in use.
func (t *snapshotCreation) findUse(ctx context.Context, m *member) error {
	device, err := t.mounts.devices.loops.FindFile(ctx, m.from)
	if errors.Is(err, loop.ErrNotAttached) {
		return fmt.Errorf("volume %q has just been detached: %w", m.source.handle, volume.ErrTransient)
	}
	if err != nil {
		return err
	}
	m.device = device
	there, mounted, err := t.mounts.at(ctx, t.mounts.stagingPath(m.source.handle))
	if err != nil {
		return err
	}
	if mounted && device.IsMountedAs(there) {
		m.use = stagedImage
		return nil
	}
	m.use = attachedImage
	opened, err := t.mounts.devices.loops.DeviceOpened(ctx, device.Path)
	if err == nil && (len(t.members) > 1 || !image.SharesInOneStep(m.from) || opened && !m.source.block) {
		err = fmt.Errorf("volume %q is attached to %s for writing and not staged, so that its writers cannot be stopped: end the pods that use it: %w",
			m.source.handle, device.Path, volume.ErrInUse)
	}
	return err
}

// finish makes the image of a snapshot durable, and describes it.
func (m *member) finish(ctx context.Context) (snapshotMember, error) {
	described := snapshotMember{Source: m.source.handle, FSType: noFilesystem}
	info, err := m.to.Stat()
	if err != nil {
		return described, err
	}
	described.Size = info.Size()
	if !m.source.block {
		found, err := format.ProbeFile(ctx, m.to)
		if err != nil {
			return described, err
		}
		if !slices.Contains(fsTypes(), found.Type) || m.source.fsType != "" && m.source.fsType != found.Type {
			return described, fmt.Errorf("it holds %s: %w", found, ErrNoFilesystem)
		}
		described.FSType = found.Type
	}
	return described, m.to.Sync()
}
