package fakedriver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/volumekit/volumekit/mount"
)

// Volume is one volume of the driver.
type Volume struct {
	// ID and Name identify the volume.
	ID, Name string
	// Size is its capacity.
	Size int64
	// Attributes are its mutable parameters.
	Attributes map[string]string
	// Nodes are the nodes to which it is published.
	Nodes []string
	// Staged and Published are its paths.
	Staged, Published []string
	// Inline says that NodePublishVolume created it for a pod.
	Inline bool
}

func (v *Volume) modify(attributes map[string]string) {
	if v.Attributes == nil {
		v.Attributes = map[string]string{}
	}
	maps.Copy(v.Attributes, attributes)
}

// storage has the driver's options, volumes, snapshots and groups. Each volume and snapshot is a directory in
// Options.Dir. The services of the driver share it.
type storage struct {
	mounter mount.Interface

	mu        sync.Mutex
	options   Options
	volumes   map[string]*Volume
	snapshots map[string]*csi.Snapshot // by id
	groups    map[string]*csi.VolumeGroupSnapshot
}

// Update changes the driver's options, as an update of the driver does.
func (s *storage) Update(change func(*Options)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.options)
}

// current returns the driver's options.
func (s *storage) current() Options {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.options
}

// has reports whether the driver has a bug. The caller holds the lock.
func (s *storage) has(b Bug) bool { return s.options.Bug == b }

// Kill resets the driver's memory, as a kill and a restart do. Its connections stay open.
func (s *storage) Kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.has(ForgetsAtRestart) {
		clear(s.volumes)
	}
}

// Volumes returns copies of the volumes, sorted by id.
func (s *storage) Volumes() []Volume {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []Volume
	for _, v := range s.volumes {
		c := *v
		c.Nodes, c.Staged, c.Published = slices.Clone(v.Nodes), slices.Clone(v.Staged), slices.Clone(v.Published)
		all = append(all, c)
	}
	// The order must not change, or a volume could be on no page of a list.
	slices.SortFunc(all, func(a, b Volume) int { return cmp.Or(len(a.ID)-len(b.ID), cmp.Compare(a.ID, b.ID)) })
	return all
}

// volume returns a volume; an error with NOT_FOUND if there is none. The caller holds the lock.
func (s *storage) volume(id string) (*Volume, error) {
	v := s.volumes[id]
	if v == nil {
		return nil, status.Error(codes.NotFound, fmt.Sprintf("no volume %q", id))
	}
	return v, nil
}

func (s *storage) path(id string) string { return filepath.Join(s.options.Dir, id) }

// empty deletes the content of a volume.
func (s *storage) empty(id string) error {
	root, err := os.OpenRoot(s.path(id))
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	entries, err := os.ReadDir(s.path(id))
	for _, entry := range entries {
		if err := root.RemoveAll(entry.Name()); err != nil {
			return err
		}
	}
	return err
}

// erase deletes a volume. The caller holds the lock.
func (s *storage) erase(id string) error {
	root, err := os.OpenRoot(s.options.Dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	for _, name := range []string{filepath.Base(id), filepath.Base(id) + deviceSuffix} {
		if err := root.RemoveAll(name); err != nil {
			return err
		}
	}
	delete(s.volumes, id)
	return nil
}

func (s *storage) unmount(ctx context.Context, path string) error {
	err := s.mounter.Unmount(ctx, path, mount.UnmountOptions{})
	if s.has(UnmountsLazily) && errors.Is(err, unix.EBUSY) {
		return detachMount(path)
	}
	if errors.Is(err, unix.EBUSY) {
		return status.Error(codes.Internal, "busy")
	}
	if errors.Is(err, mount.ErrNotMounted) {
		return nil
	}
	return err
}

func detachMount(path string) error { return unix.Unmount(path, unix.MNT_DETACH) }

// Snapshots returns the sorted ids of the snapshots.
func (s *storage) Snapshots() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var ids []string
	for id := range s.snapshots {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// takeSnapshot copies a volume into a new snapshot. The caller holds the lock.
func (s *storage) takeSnapshot(id, source string) (*csi.Snapshot, error) {
	v, err := s.volume(source)
	if err != nil {
		return nil, err
	}
	if err := os.CopyFS(s.path(id), os.DirFS(s.path(v.ID))); err != nil {
		return nil, err
	}
	s.snapshots[id] = &csi.Snapshot{
		SnapshotId: id, SourceVolumeId: source, SizeBytes: v.Size, CreationTime: timestamppb.Now(), ReadyToUse: true,
	}
	return s.snapshots[id], nil
}

// restore copies a snapshot into a new volume. The caller holds the lock.
func (s *storage) restore(v *Volume, id string) error {
	return os.CopyFS(s.path(v.ID), os.DirFS(s.path(id)))
}

// removeSnapshot deletes a snapshot. The caller holds the lock.
func (s *storage) removeSnapshot(id string) error {
	root, err := os.OpenRoot(s.options.Dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	delete(s.snapshots, id)
	return root.RemoveAll(id)
}

// answerOf returns the driver's answer about a snapshot. The caller holds the lock.
func (s *storage) answerOf(snapshot *csi.Snapshot) *csi.Snapshot {
	answer := proto.CloneOf(snapshot)
	answer.ReadyToUse = !s.options.NeverReady
	return answer
}
