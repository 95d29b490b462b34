package volumetest

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/volumekit/volumekit/mount"
)

// World is where the effects of a plugin are looked at: a mount table and the files that can be reached through it. Every
// path is absolute. [KernelWorld] is the real one and fake.Mounter is one in memory.
type World interface {
	// List returns the mount table.
	List(ctx context.Context) ([]mount.MountPoint, error)
	// ReadFile returns the content of a file; errors are those of os.ReadFile.
	ReadFile(name string) ([]byte, error)
	// WriteFile writes a file, which it makes where it does not exist; errors are those of os.WriteFile. Through a
	// read-only mount it must fail.
	WriteFile(name string, data []byte, perm fs.FileMode) error
	// Lstat describes what is at name and does not follow a symbolic link there; errors are those of os.Lstat.
	Lstat(name string) (fs.FileInfo, error)
}

// A World may have more methods, which some cases need; both that are here have them: Hold (a mount that is in use), Symlink,
// MkdirAll and Remove (the link to a block device), Capacity (what statfs tells of a volume that has grown), Group and CanGive
// (to whom files belong), Give and Chmod (the root of a volume), ReadDir (what is left in a directory), Sync (what a snapshot must have).
var (
	_ lister  = kernelWorld{}
	_ holder  = kernelWorld{}
	_ linker  = kernelWorld{}
	_ sizer   = kernelWorld{}
	_ giver   = kernelWorld{}
	_ changer = kernelWorld{}
	_ syncer  = kernelWorld{}
)

// lister is a World that tells what is in a directory.
type lister interface {
	// ReadDir lists a directory; errors are those of os.ReadDir.
	ReadDir(name string) ([]fs.DirEntry, error)
}

// KernelWorld returns the world of the machine that the test runs on: its files, and the mount table of the process.
func KernelWorld() World { return kernelWorld{mounter: mount.New(mount.Options{})} }

type kernelWorld struct{ mounter *mount.Mounter }

func (w kernelWorld) List(ctx context.Context) ([]mount.MountPoint, error) {
	return w.mounter.List(ctx)
}

// Unmount takes off what a broken plugin has left.
func (w kernelWorld) Unmount(ctx context.Context, target string, options mount.UnmountOptions) error {
	return w.mounter.Unmount(ctx, target, options)
}

func (kernelWorld) ReadFile(name string) ([]byte, error) { return os.ReadFile(name) }

func (kernelWorld) WriteFile(name string, data []byte, perm fs.FileMode) error {
	return os.WriteFile(name, data, perm)
}

func (kernelWorld) Lstat(name string) (fs.FileInfo, error) { return os.Lstat(name) }

// Hold opens a file.
func (kernelWorld) Hold(name string) (release func(), err error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	return func() { _ = file.Close() }, nil
}

func (kernelWorld) Symlink(oldname, newname string) error { return os.Symlink(oldname, newname) }

func (kernelWorld) MkdirAll(name string, perm fs.FileMode) error { return os.MkdirAll(name, perm) }

func (kernelWorld) ReadDir(name string) ([]fs.DirEntry, error) { return os.ReadDir(name) }

func (kernelWorld) Chmod(name string, mode fs.FileMode) error { return os.Chmod(name, mode) }

// Give leaves the user as it is.
func (kernelWorld) Give(name string, gid int64) error { return os.Chown(name, -1, int(gid)) }

// Sync syncs a file and its directory.
func (kernelWorld) Sync(name string) error {
	for _, path := range []string{name, filepath.Dir(name)} {
		file, err := os.Open(path)
		if err != nil {
			return err
		}
		if err := errors.Join(file.Sync(), file.Close()); err != nil {
			return err
		}
	}
	return nil
}

func (kernelWorld) Remove(name string) error { return os.Remove(name) }
