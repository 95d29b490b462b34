package loopblock

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/image"
	"github.com/volumekit/volumekit/volume"
)

// CanSnapshot implements volume.SnapshottableVolumePlugin: every volume can have snapshots.
func (p *Plugin) CanSnapshot(source *volume.Spec) (bool, error) { return p.CanClone(source) }

// CreateSnapshot implements volume.SnapshottableVolumePlugin. The snapshot is ready when the call returns, and its
// handle is its name. It has no class parameters. If the filesystem was frozen for longer than [Options].FreezeLimit,
// the error matches [ErrTimeout] and no snapshot is left. If a volume in use cannot be copied, the error matches
// volume.ErrInUse.
func (p *Plugin) CreateSnapshot(ctx context.Context, options volume.SnapshotOptions) (volume.Snapshot, error) {
	t, err := p.snapshots.newCreation(options.Name, options.Parameters, options.Source)
	if err != nil {
		return volume.Snapshot{}, err
	}
	record, err := t.make(ctx)
	if err != nil {
		return volume.Snapshot{}, fmt.Errorf("making snapshot %q: %w", options.Name, classifySnapshot(err))
	}
	return record.snapshot(0), nil
}

// CreateGroupSnapshot implements volume.GroupSnapshottableVolumePlugin. It freezes all staged volumes together. The
// handle of the group is its name. The handle of a snapshot is that name, a slash and a number.
func (p *Plugin) CreateGroupSnapshot(
	ctx context.Context, options volume.GroupSnapshotOptions,
) (volume.GroupSnapshot, error) {
	t, err := p.snapshots.newCreation(options.Name, options.Parameters, options.Sources...)
	if err != nil {
		return volume.GroupSnapshot{}, err
	}
	t.group = true
	record, err := t.make(ctx)
	if err != nil {
		return volume.GroupSnapshot{}, fmt.Errorf("making the snapshots of group %q: %w", options.Name, classifySnapshot(err))
	}
	return record.groupSnapshot(), nil
}

// GetSnapshot implements volume.SnapshottableVolumePlugin.
func (p *Plugin) GetSnapshot(ctx context.Context, handle string) (volume.Snapshot, error) {
	record, member, err := p.snapshots.recordOf(ctx, handle)
	if err != nil {
		return volume.Snapshot{}, err
	}
	return record.snapshot(member), nil
}

// GetGroupSnapshot implements volume.GroupSnapshottableVolumePlugin.
func (p *Plugin) GetGroupSnapshot(ctx context.Context, handle string, _ []string) (volume.GroupSnapshot, error) {
	record, err := p.snapshots.read(ctx, handle)
	if err == nil && !record.Group {
		err = fmt.Errorf("snapshot %q is no group: %w", handle, volume.ErrNotFound)
	}
	if err != nil {
		return volume.GroupSnapshot{}, err
	}
	return record.groupSnapshot(), nil
}

// ListSnapshots implements volume.SnapshotLister. Before the first volume there is no directory, and so no snapshot.
func (p *Plugin) ListSnapshots(ctx context.Context) ([]volume.Snapshot, error) {
	return p.snapshots.list(ctx)
}

// DeleteSnapshot implements volume.SnapshottableVolumePlugin. It removes the record of the snapshot first, then its
// image: the next call completes an interrupted one. A volume that is being restored from the snapshot still gets all
// of it. For a snapshot of a group the error matches volume.ErrInfeasible, for one that is being made
// volume.ErrTransient.
func (p *Plugin) DeleteSnapshot(ctx context.Context, handle string) error {
	if group, member, isMember := parseMember(handle); isMember {
		record, err := p.snapshots.read(ctx, group)
		if errors.Is(err, volume.ErrNotFound) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("deleting snapshot %q: %w", handle, err)
		}
		if !record.Group || member >= len(record.Members) {
			return nil
		}
		return fmt.Errorf("snapshot %q belongs to group %q: delete the group: %w", handle, group, volume.ErrInfeasible)
	}
	return p.snapshots.delete(ctx, handle, func(r snapshotRecord) error {
		if r.Group {
			return fmt.Errorf("it is a group: %w", volume.ErrInvalid)
		}
		return nil
	})
}

// DeleteGroupSnapshot implements volume.GroupSnapshottableVolumePlugin.
func (p *Plugin) DeleteGroupSnapshot(ctx context.Context, handle string, snapshots []string) error {
	return p.snapshots.delete(ctx, handle, func(r snapshotRecord) error {
		if !r.Group {
			return fmt.Errorf("it is no group: %w", volume.ErrInvalid)
		}
		for _, s := range snapshots {
			if name, i, ok := parseMember(s); !ok || name != r.Name || i >= len(r.Members) {
				return fmt.Errorf("snapshot %q is none of the group: %w", s, volume.ErrInvalid)
			}
		}
		return nil
	})
}

// snapshots creates, finds and deletes snapshots, and restores volumes from them. It keeps nothing in memory: the
// directory of the images is the only state.
type snapshots struct {
	copies
	freezes *freezes
}

// delete deletes the record of a name if check returns nil for it, and all images of the name.
func (s *snapshots) delete(ctx context.Context, name string, check func(snapshotRecord) error) error {
	if valid := checkSnapshotName(name) == nil; !valid {
		return nil // nothing has such a name
	}
	_, err := inImages(ctx, s.mounts.devices.images, "deletion of snapshot "+name, func(dir *image.Dir) (struct{}, error) {
		lock, err := dir.Begin(name + lockSuffix)
		if err != nil {
			return struct{}{}, err
		}
		defer lock.Close()
		return struct{}{}, errors.Join(deleteLocked(dir, name, check), dir.Remove(name+lockSuffix, lock))
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("deleting snapshot %q: %w", name, classifySnapshot(err))
	}
	return nil
}

// parseMember returns the group and the number of the snapshot in a handle; false if the handle is not that of a group's
// snapshot.
func parseMember(handle string) (name string, member int, ok bool) {
	name, number, ok := strings.Cut(handle, "/")
	member, err := strconv.Atoi(number)
	if !ok || err != nil || member < 0 || strconv.Itoa(member) != number {
		return handle, 0, false
	}
	return name, member, true
}

// recordOf returns the record of a snapshot's handle, and the snapshot's index among the members.
func (s *snapshots) recordOf(ctx context.Context, handle string) (snapshotRecord, int, error) {
	name, member, isMember := parseMember(handle)
	record, err := s.read(ctx, name)
	if err == nil && (record.Group != isMember || member >= len(record.Members)) {
		err = fmt.Errorf("snapshot %q does not exist: %w", handle, volume.ErrNotFound)
	}
	return record, member, err
}

func (s *snapshots) read(ctx context.Context, name string) (snapshotRecord, error) {
	if err := checkSnapshotName(name); err != nil {
		return snapshotRecord{}, fmt.Errorf("snapshot %q does not exist: %w: %w", name, volume.ErrNotFound, err)
	}
	record, err := inImages(ctx, s.mounts.devices.images, "record of snapshot "+name, func(dir *image.Dir) (snapshotRecord, error) {
		return readRecord(dir, name)
	})
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("snapshot %q does not exist: %w: %w", name, volume.ErrNotFound, err)
	}
	return record, err
}

// list returns all snapshots, also those of groups.
func (s *snapshots) list(ctx context.Context) ([]volume.Snapshot, error) {
	all, err := inImages(ctx, s.mounts.devices.images, "list of the snapshots", func(dir *image.Dir) ([]volume.Snapshot, error) {
		names, err := dir.Names()
		if err != nil {
			return nil, err
		}
		var all []volume.Snapshot
		for _, name := range names {
			snapshot, is := strings.CutSuffix(name, recordSuffix)
			if !is {
				continue
			}
			record, err := readRecord(dir, snapshot)
			if errors.Is(err, fs.ErrNotExist) {
				continue // it was deleted meanwhile
			}
			if err != nil {
				return nil, err
			}
			for i := range record.Members {
				all = append(all, record.snapshot(i))
			}
		}
		return all, nil
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return all, err
}

// inImages calls do with the directory of the images. It returns when ctx ends, even if their filesystem hangs.
func inImages[T any](ctx context.Context, i images, what string, do func(*image.Dir) (T, error)) (T, error) {
	if err := context.Cause(ctx); err != nil {
		return *new(T), fmt.Errorf("%s was not begun: %w", what, err)
	}
	return mount.RunAbandonable(ctx, what, i.dir, func() (T, error) {
		dir, err := image.OpenDir(i.dir)
		if err != nil {
			return *new(T), err
		}
		defer dir.Close()
		value, err := do(dir)
		var lost *mount.AbandonedError
		if errors.As(err, &lost) {
			<-lost.Done() // it still uses the directory
		}
		return value, err
	})
}

// newCreation checks the request. It does no I/O.
func (s *snapshots) newCreation(name string, parameters map[string]string, sources ...*volume.Spec) (*snapshotCreation, error) {
	t := &snapshotCreation{snapshots: s, name: name}
	if err := checkSnapshotName(name); err != nil {
		return nil, fmt.Errorf("snapshot %q: %w", name, err)
	}
	for key := range parameters {
		return nil, fmt.Errorf("snapshot %q: class parameter %q is not known, and this plugin knows none: remove it: %w", name, key, volume.ErrInvalid)
	}
	for _, spec := range sources {
		src, err := sourceOf(spec)
		if err != nil {
			return nil, fmt.Errorf("snapshot %q: %w", name, err)
		}
		t.members = append(t.members, &member{source: src})
	}
	if len(t.members) == 0 {
		return nil, fmt.Errorf("snapshot %q is of no volume: name one: %w", name, volume.ErrInvalid)
	}
	slices.SortFunc(t.members, func(a, b *member) int { return strings.Compare(a.source.handle, b.source.handle) })
	for i := range t.members[1:] {
		if handle := t.members[i].source.handle; handle == t.members[i+1].source.handle {
			return nil, fmt.Errorf("snapshot %q names volume %q twice: %w", name, handle, volume.ErrInvalid)
		}
	}
	return t, nil
}
