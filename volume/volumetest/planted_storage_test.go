package volumetest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/volume"
)

// plantedStorage is the system of disks behind a planted plugin, which outlives the plugin. A disk is a directory, or a file
// that is its device, of a machine in memory.
type plantedStorage struct {
	world *fake.Mounter

	mu    sync.Mutex
	disks map[string]*plantedDisk
	locks map[string]*sync.Mutex // by volume
	order []string               // of the disks that are attached, as a bug counts them
	open  []*os.File             // descriptors that bugs keep
}

type plantedDisk struct {
	size       int64 // of the disk
	filesystem int64 // of what is on it
	remounted  int64 // of what is on it after the next mount, where a bug has not written down that it has grown
	block      bool
	nodes      map[types.NodeName]bool
}

func newPlantedStorage(t testing.TB, world *fake.Mounter) *plantedStorage {
	s := &plantedStorage{world: world, disks: map[string]*plantedDisk{}, locks: map[string]*sync.Mutex{}}
	t.Cleanup(func() {
		for _, file := range s.open {
			_ = file.Close()
		}
	})
	return s
}

// diskPath is where a disk is, on every node.
func diskPath(name string) string { return "/storage/" + name }

// plantedDevice is the device of a disk that is given to pods as one.
func plantedDevice(name string) string { return diskPath(name) + "/device" }

func (s *plantedStorage) keepOpen() {
	file, err := os.Open(os.DevNull)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		s.open = append(s.open, file)
	}
}

// lock locks a volume and returns what unlocks it.
func (s *plantedStorage) lock(name string) (unlock func()) {
	s.mu.Lock()
	if s.locks[name] == nil {
		s.locks[name] = &sync.Mutex{}
	}
	lock := s.locks[name]
	s.mu.Unlock()
	lock.Lock()
	return lock.Unlock
}

// use does something with a disk.
func (s *plantedStorage) use(name string, do func(d *plantedDisk) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	d, ok := s.disks[name]
	if !ok {
		return fmt.Errorf("disk %q is not there: %w", name, fs.ErrNotExist)
	}
	return do(d)
}

func (s *plantedStorage) exists(name string) error {
	return s.use(name, func(*plantedDisk) error { return nil })
}

// filesystemOf returns the size of the filesystem on a disk, 0 where there is none.
func (s *plantedStorage) filesystemOf(name string) (size int64) {
	_ = s.use(name, func(d *plantedDisk) error {
		size = d.filesystem
		return nil
	})
	return size
}

// create makes a disk, unless it is there.
func (s *plantedStorage) create(name string, size int64, block bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.disks[name] != nil {
		return nil
	}
	if err := s.world.MkdirAll(diskPath(name), 0o755); err != nil {
		return err
	}
	if block {
		if err := s.world.WriteFile(plantedDevice(name), nil, 0o660); err != nil {
			return err
		}
	}
	s.disks[name] = &plantedDisk{size: size, filesystem: size, block: block, nodes: map[types.NodeName]bool{}}
	return nil
}

// wipe empties a disk.
func (s *plantedStorage) wipe(ctx context.Context, name string) error {
	if _, err := s.world.Lstat(plantedDevice(name)); err == nil {
		return s.world.WriteFile(plantedDevice(name), nil, 0o660)
	}
	return s.world.RemoveContent(ctx, "/storage", name)
}

// remove deletes a disk and what it holds.
func (s *plantedStorage) remove(ctx context.Context, name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.disks, name)
	err := s.world.RemoveContent(ctx, "/storage", name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return errors.Join(err, s.world.RemoveAll(ctx, "/storage", name))
}

// names are the disks whose names begin with prefix.
func (s *plantedStorage) names(prefix string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	for name := range s.disks {
		if strings.HasPrefix(name, prefix) {
			names = append(names, name)
		}
	}
	return names
}

// mountsOf are the paths at which a disk is mounted.
func (s *plantedStorage) mountsOf(ctx context.Context, name string) ([]string, error) {
	table, err := s.world.List(ctx)
	var paths []string
	for _, m := range table {
		if m.Root == diskPath(name) {
			paths = append(paths, m.Path)
		}
	}
	return paths, err
}

// checkUnused refuses a disk that is attached.
func (s *plantedStorage) checkUnused(ctx context.Context, name string) error {
	mounts, err := s.mountsOf(ctx, name)
	if err != nil {
		return err
	}
	if _, err := s.world.Lstat("/dev/mapped/" + name); err == nil {
		mounts = append(mounts, "/dev/mapped/"+name)
	}
	if len(mounts) > 0 {
		return fmt.Errorf("disk %q is at %v: %w", name, mounts, volume.ErrInUse)
	}
	return nil
}

// plantedWorld is the world with the sizes of the disks.
type plantedWorld struct {
	*fake.Mounter
	storage *plantedStorage
}

// Capacity tells the size of the filesystem that is mounted at name.
func (w *plantedWorld) Capacity(name string) (int64, error) {
	table, err := w.List(context.Background())
	if err != nil {
		return 0, err
	}
	for _, m := range slices.Backward(table) {
		if disk, isDisk := strings.CutPrefix(m.Root, "/storage/"); isDisk && m.Path == name {
			return w.storage.filesystemOf(filepath.Base(disk)), nil
		}
	}
	return w.Mounter.Capacity(name)
}
