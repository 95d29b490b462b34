package fake

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/volume"
)

// CanSnapshot implements [volume.SnapshottableVolumePlugin]: what has a handle can be snapshotted.
func (p *Plugin) CanSnapshot(source *volume.Spec) (bool, error) { return p.CanClone(source) }

// CreateSnapshot implements [volume.SnapshottableVolumePlugin]. The handle of the snapshot is its name. No parameter is known.
func (p *Plugin) CreateSnapshot(ctx context.Context, options volume.SnapshotOptions) (made volume.Snapshot, err error) {
	taking, err := p.newCreation(options.Name, options.Parameters, options.Source)
	if err != nil {
		return volume.Snapshot{}, err
	}
	err = p.log.run(ctx, Call{Method: MethodCreateSnapshot, Volume: options.Source.Name()}, func() error {
		all, err := taking.run(ctx)
		if err == nil {
			made = all[0]
		}
		return err
	})
	return made, p.snapshotError("making", options.Name, err)
}

// GetSnapshot implements [volume.SnapshottableVolumePlugin].
func (p *Plugin) GetSnapshot(ctx context.Context, handle string) (found volume.Snapshot, err error) {
	err = p.log.run(ctx, Call{Method: MethodGetSnapshot, Volume: handle}, func() error {
		found, err = p.options.Backend.snapshot(handle)
		return err
	})
	return found, p.snapshotError("reading", handle, err)
}

// DeleteSnapshot implements [volume.SnapshottableVolumePlugin]. A snapshot of a group is refused.
func (p *Plugin) DeleteSnapshot(ctx context.Context, handle string) error {
	err := p.log.run(ctx, Call{Method: MethodDeleteSnapshot, Volume: handle}, func() error {
		return p.options.Backend.deleteSnapshot(ctx, handle)
	})
	return p.snapshotError("deleting", handle, err)
}

// ListSnapshots implements [volume.SnapshotLister].
func (p *Plugin) ListSnapshots(ctx context.Context) (all []volume.Snapshot, err error) {
	err = p.log.run(ctx, Call{Method: MethodListSnapshots}, func() error {
		all = p.options.Backend.Snapshots()
		return nil
	})
	return all, err
}

// CreateGroupSnapshot implements [volume.GroupSnapshottableVolumePlugin]. The handle of the group is its name, and that of its
// snapshots the name, a slash and a number.
func (p *Plugin) CreateGroupSnapshot(
	ctx context.Context, options volume.GroupSnapshotOptions,
) (made volume.GroupSnapshot, err error) {
	taking, err := p.newCreation(options.Name, options.Parameters, options.Sources...)
	if err != nil {
		return volume.GroupSnapshot{}, err
	}
	taking.group = true
	err = p.log.run(ctx, Call{Method: MethodCreateGroupSnapshot, Volume: options.Name}, func() error {
		all, err := taking.run(ctx)
		if err == nil {
			made = groupOf(options.Name, all)
		}
		return err
	})
	return made, p.snapshotError("making", options.Name, err)
}

// GetGroupSnapshot implements [volume.GroupSnapshottableVolumePlugin].
func (p *Plugin) GetGroupSnapshot(
	ctx context.Context, handle string, _ []string,
) (found volume.GroupSnapshot, err error) {
	err = p.log.run(ctx, Call{Method: MethodGetGroupSnapshot, Volume: handle}, func() error {
		found, err = p.options.Backend.group(handle)
		return err
	})
	return found, p.snapshotError("reading", handle, err)
}

// DeleteGroupSnapshot implements [volume.GroupSnapshottableVolumePlugin].
func (p *Plugin) DeleteGroupSnapshot(ctx context.Context, handle string, snapshots []string) error {
	err := p.log.run(ctx, Call{Method: MethodDeleteGroupSnapshot, Volume: handle}, func() error {
		return p.options.Backend.deleteGroup(ctx, handle, snapshots)
	})
	return p.snapshotError("deleting", handle, err)
}

func (p *Plugin) snapshotError(doing, name string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("plugin %q: %s snapshot %q: %w", p.options.Name, doing, name, err)
}

// checkRestore refuses a volume smaller than its snapshot.
func (p *Plugin) checkRestore(options volume.VolumeOptions) error {
	return p.snapshotError("restoring", options.Snapshot.Handle, volume.CheckRestoreSize(options.PVC, options.Snapshot))
}

// snapshotCreation is a snapshot of one volume, or of a group, under way.
type snapshotCreation struct {
	plugin  *Plugin
	name    string
	group   bool
	handles []string // of the volumes
}

func (p *Plugin) newCreation(name string, parameters map[string]string, sources ...*volume.Spec) (snapshotCreation, error) {
	t := snapshotCreation{plugin: p, name: name}
	for key := range parameters {
		return t, p.snapshotError("making", name, fmt.Errorf("parameter %q is not known: remove it from the class: %w", key, volume.ErrInvalid))
	}
	if err := checkNames(name); err != nil {
		return t, p.snapshotError("making", name, err)
	}
	for _, source := range sources {
		v, err := p.persistent(source)
		if err == nil && slices.Contains(t.handles, v.handle) {
			err = fmt.Errorf("volume %q is named twice: %w", v.handle, volume.ErrInvalid)
		}
		if err != nil {
			return t, p.snapshotError("making", name, err)
		}
		t.handles = append(t.handles, v.handle)
	}
	if len(t.handles) == 0 {
		return t, p.snapshotError("making", name, fmt.Errorf("no volume is named: %w", volume.ErrInvalid))
	}
	return t, nil
}

// run returns the snapshots of that name, which it makes if there are none.
func (t snapshotCreation) run(ctx context.Context) ([]volume.Snapshot, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	backend := t.plugin.options.Backend
	existing, err := backend.existing(t)
	if err != nil || existing != nil {
		return existing, err
	}
	contents, err := t.read(ctx)
	if err != nil {
		return nil, err
	}
	return backend.keep(t, contents)
}

// read returns the content of the volumes at one moment: the files of their stages, or, where one is not mounted, what it was
// made with.
func (t snapshotCreation) read(ctx context.Context) ([]map[string][]byte, error) {
	contents := make([]map[string][]byte, len(t.handles))
	var dirs []string
	var of []int
	for i, handle := range t.handles {
		stage, err := t.plugin.stagePath(handle)
		if err != nil {
			return nil, err
		}
		mounted, err := t.plugin.mounted(ctx, stage)
		if err != nil {
			return nil, err
		}
		if mounted {
			dirs, of = append(dirs, stage), append(of, i)
			continue
		}
		contents[i] = t.plugin.options.Backend.contentOf(handle)
	}
	trees, err := readTrees(filesOf(t.plugin.options.Mounter), dirs)
	if err != nil {
		return nil, fmt.Errorf("reading what is staged: %w: %w", volume.ErrTransient, err)
	}
	for n, i := range of {
		contents[i] = trees[n]
	}
	return contents, nil
}

// momentReader are files of which several trees can be read at one moment.
type momentReader interface {
	readTrees(dirs []string) ([]map[string][]byte, error)
}

func readsAtOneMoment(mounter mount.Interface) bool {
	_, ok := filesOf(mounter).(momentReader)
	return ok
}

// readTrees reads several trees: at one moment where the files can be read so, else one after the other.
func readTrees(from files, dirs []string) ([]map[string][]byte, error) {
	if all, ok := from.(momentReader); ok {
		return all.readTrees(dirs)
	}
	trees := make([]map[string][]byte, len(dirs))
	for i, dir := range dirs {
		tree, err := readTree(from, dir)
		if err != nil {
			return nil, err
		}
		trees[i] = tree
	}
	return trees, nil
}

// readTrees returns the regular files beneath each of dirs, by their relative paths, at one moment.
func (m *Mounter) readTrees(dirs []string) ([]map[string][]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	trees := make([]map[string][]byte, len(dirs))
	for i, dir := range dirs {
		at, err := m.namespace.resolve(dir, walk{follow: true})
		if err != nil {
			return nil, pathError("open", dir, err)
		}
		trees[i] = map[string][]byte{}
		at.node.collect("", trees[i])
	}
	return trees, nil
}

// collect adds the regular files beneath a directory. The caller holds the lock.
func (n *inode) collect(prefix string, files map[string][]byte) {
	for name, child := range n.children {
		switch {
		case child.mode.IsDir():
			child.collect(prefix+name+"/", files)
		case child.mode.IsRegular():
			files[prefix+name] = slices.Clone(child.data)
		}
	}
}

// backendSnapshot is a snapshot with its content, which is never changed.
type backendSnapshot struct {
	volume.Snapshot

	content map[string][]byte
}

// Snapshots returns every snapshot, by handle; copies.
func (b *Backend) Snapshots() []volume.Snapshot {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []volume.Snapshot
	for _, s := range b.snapshots {
		all = append(all, s.Snapshot)
	}
	slices.SortFunc(all, func(a, b volume.Snapshot) int { return strings.Compare(a.Handle, b.Handle) })
	return all
}

// MakeSnapshotReady makes a snapshot ready to use. A snapshot that does not exist is an error that matches volume.ErrNotFound.
func (b *Backend) MakeSnapshotReady(handle string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	s, ok := b.snapshots[handle]
	if !ok {
		return noSnapshot(handle)
	}
	s.ReadyToUse = true
	return nil
}

func noSnapshot(handle string) error {
	return fmt.Errorf("snapshot %q does not exist: %w", handle, volume.ErrNotFound)
}

func (b *Backend) snapshot(handle string) (volume.Snapshot, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s, ok := b.snapshots[handle]
	if !ok {
		return volume.Snapshot{}, noSnapshot(handle)
	}
	return s.Snapshot, nil
}

func (b *Backend) group(handle string) (volume.GroupSnapshot, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	handles, ok := b.groups[handle]
	if !ok {
		return volume.GroupSnapshot{}, noSnapshot(handle)
	}
	return groupOf(handle, b.all(handles)), nil
}

// all returns the snapshots of handles. The caller holds the lock.
func (b *Backend) all(handles []string) []volume.Snapshot {
	all := make([]volume.Snapshot, len(handles))
	for i, handle := range handles {
		all[i] = b.snapshots[handle].Snapshot
	}
	return all
}

func groupOf(handle string, all []volume.Snapshot) volume.GroupSnapshot {
	group := volume.GroupSnapshot{Handle: handle, CreationTime: all[0].CreationTime, ReadyToUse: true, Snapshots: all}
	for _, s := range all {
		group.ReadyToUse = group.ReadyToUse && s.ReadyToUse
	}
	return group
}

// existing returns the snapshots of the name, and nil if there are none.
func (b *Backend) existing(t snapshotCreation) ([]volume.Snapshot, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.find(t)
}

// find is existing. The caller holds the lock.
func (b *Backend) find(t snapshotCreation) ([]volume.Snapshot, error) {
	handles, ok := b.groups[t.name]
	if _, single := b.snapshots[t.name]; single {
		handles, ok = []string{t.name}, true
	}
	if !ok {
		return nil, nil
	}
	all := b.all(handles)
	var has []string
	for _, s := range all {
		has = append(has, s.SourceVolume)
	}
	if isGroup := all[0].GroupHandle != ""; isGroup != t.group || !slices.Equal(sorted(has), sorted(t.handles)) {
		return nil, &volume.SnapshotSourceError{Name: t.name, Has: has, Wanted: t.handles}
	}
	return all, nil
}

func sorted(names []string) []string { return slices.Sorted(slices.Values(names)) }

// keep stores the contents as snapshots, unless another call has made them meanwhile, and returns the snapshots.
func (b *Backend) keep(t snapshotCreation, contents []map[string][]byte) ([]volume.Snapshot, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if existing, err := b.find(t); err != nil || existing != nil {
		return existing, err
	}
	for _, handle := range t.handles {
		if _, ok := b.volumes[handle]; !ok {
			return nil, fmt.Errorf("volume %q does not exist: %w", handle, volume.ErrNotFound)
		}
	}
	now := time.Now()
	handles := make([]string, len(t.handles))
	for i, source := range t.handles {
		made := volume.Snapshot{
			Handle: t.name, SourceVolume: source, CreationTime: now, RestoreSize: b.volumes[source].size,
			ReadyToUse: !t.plugin.options.UnreadySnapshots,
		}
		if t.group {
			made.Handle, made.GroupHandle = t.name+"/"+strconv.Itoa(i), t.name
		}
		b.snapshots[made.Handle] = &backendSnapshot{Snapshot: made, content: contents[i]}
		handles[i] = made.Handle
	}
	if t.group {
		b.groups[t.name] = handles
	}
	return b.all(handles), nil
}

func (b *Backend) deleteSnapshot(ctx context.Context, handle string) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if s, ok := b.snapshots[handle]; ok && s.GroupHandle != "" {
		return fmt.Errorf("it belongs to group %q: delete the group: %w", s.GroupHandle, volume.ErrInfeasible)
	}
	delete(b.snapshots, handle)
	return nil
}

func (b *Backend) deleteGroup(ctx context.Context, handle string, snapshots []string) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	has, ok := b.groups[handle]
	if !ok {
		return nil
	}
	for _, s := range snapshots {
		if !slices.Contains(has, s) {
			return fmt.Errorf("snapshot %q is none of group %q: name those of the group: %w", s, handle, volume.ErrInvalid)
		}
	}
	for _, s := range has {
		delete(b.snapshots, s)
	}
	delete(b.groups, handle)
	return nil
}

// restore makes a volume with the content of a snapshot, unless the volume is there.
func (b *Backend) restore(handle string, size int64, snapshot string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if v, ok := b.volumes[handle]; ok {
		if v.size < size {
			return existsWith(v.size, handle, size)
		}
		return nil
	}
	s, ok := b.snapshots[snapshot]
	switch {
	case !ok:
		return fmt.Errorf("%w: nothing was restored from it: %w", noSnapshot(snapshot), volume.ErrInfeasible)
	case !s.ReadyToUse:
		return fmt.Errorf("snapshot %q is not ready to use: %w", snapshot, volume.ErrTransient)
	case size < s.RestoreSize:
		return &volume.RestoreSizeError{Snapshot: snapshot, Requested: size, RestoreSize: s.RestoreSize}
	}
	v := b.ensure(handle)
	v.size, v.content = size, s.content
	return nil
}
