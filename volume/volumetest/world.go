package volumetest

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/volumekit/volumekit/mount"
)

// World is the machine on which the suite checks the effects of a plugin: a mount table, and the files in its mounts. Every path is
// absolute. [KernelWorld] is this machine. fake.Mounter is one in memory.
type World interface {
	// List returns the mount table.
	List(ctx context.Context) ([]mount.MountPoint, error)
	// ReadFile returns the content of a file; errors are those of os.ReadFile.
	ReadFile(name string) ([]byte, error)
	// WriteFile writes a file, and makes it if it is missing; errors are those of os.WriteFile. It must fail in a read-only mount.
	WriteFile(name string, data []byte, perm fs.FileMode) error
	// Lstat describes the file with that name, and does not follow a symbolic link; errors are those of os.Lstat.
	Lstat(name string) (fs.FileInfo, error)
}

// Some cases need more methods of a World. KernelWorld and fake.Mounter have them: Hold for a mount that is in use; Symlink, MkdirAll and
// Remove for the link to a block device; Capacity for the size of an expanded volume; Group and CanGive for the group of files; Give and
// Chmod for the root of a volume; ReadDir for files that are left; Sync for the content of a snapshot.
var (
	_ lister  = kernelWorld{}
	_ holder  = kernelWorld{}
	_ linker  = kernelWorld{}
	_ sizer   = kernelWorld{}
	_ giver   = kernelWorld{}
	_ changer = kernelWorld{}
	_ syncer  = kernelWorld{}
)

// lister is a World that lists directories.
type lister interface {
	// ReadDir lists a directory; errors are those of os.ReadDir.
	ReadDir(name string) ([]fs.DirEntry, error)
}

// KernelWorld returns the world of this machine: its files, and the mount table of the process.
func KernelWorld() World { return kernelWorld{mounter: mount.New(mount.Options{})} }

type kernelWorld struct{ mounter *mount.Mounter }

func (w kernelWorld) List(ctx context.Context) ([]mount.MountPoint, error) {
	return w.mounter.List(ctx)
}

// Unmount removes a mount that a broken plugin has left.
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

// Give changes the group of a file, and not its user.
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
