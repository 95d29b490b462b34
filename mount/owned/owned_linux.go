package owned

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/mount/safepath"
)

// identityOf returns the identity of an open directory.
func identityOf(dir *os.File) (Identity, error) {
	i, _, err := lookAt(dir)
	return i, err
}

// lookAt returns the identity of an open directory and the id of its mount.
func lookAt(dir *os.File) (i Identity, mount uint64, err error) {
	const wanted = unix.STATX_INO | unix.STATX_BTIME | unix.STATX_MNT_ID
	var stat unix.Statx_t
	var filesystem unix.Statfs_t
	fd := int(dir.Fd())
	err = errors.Join(unix.Statx(fd, "", unix.AT_EMPTY_PATH, wanted, &stat), unix.Fstatfs(fd, &filesystem))
	if err != nil {
		return Identity{}, 0, fmt.Errorf("looking at %q: %w", dir.Name(), err)
	}
	i = Identity{Filesystem: uint64(uint32(filesystem.Fsid.Val[1]))<<32 | uint64(uint32(filesystem.Fsid.Val[0])), Inode: stat.Ino}
	if stat.Mask&unix.STATX_BTIME != 0 {
		i.Seconds, i.Nanoseconds = stat.Btime.Sec, stat.Btime.Nsec
	}
	if stat.Mask&unix.STATX_MNT_ID != 0 { // since Linux 5.8
		return i, stat.Mnt_id, nil
	}
	return i, unix.Mkdev(stat.Dev_major, stat.Dev_minor), nil
}

// See returns the identity of the directory at an absolute path. No element of the path may be a link.
func See(ctx context.Context, name string, options safepath.Options) (Seen, error) {
	dir, err := openDirectory(ctx, name, options)
	if err != nil {
		return Seen{}, err
	}
	defer closeFile(dir)
	identity, mount, err := lookAt(dir)
	return Seen{Identity: identity, Mount: mount}, err
}

// Check compares the directory at a path with the directory that was seen there. The error matches [ErrUnproven] if another directory is
// there now, or if the path is missing and something was mounted above it. It matches fs.ErrNotExist if the directory is gone.
func (s Seen) Check(ctx context.Context, name string, options safepath.Options) error {
	now, err := See(ctx, name, options)
	switch {
	case err == nil && now != s:
		return fmt.Errorf("%q is another directory than before, or is seen on another mount: %w", name, ErrUnproven)
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	above, aboveErr := seeAbove(ctx, name, options)
	if aboveErr == nil && above.Mount != s.Mount {
		return fmt.Errorf("%q cannot be seen, since something is mounted above it: %w", name, ErrUnproven)
	}
	return errors.Join(err, aboveErr)
}

// seeAbove returns the identity of the lowest existing directory above a path.
func seeAbove(ctx context.Context, name string, options safepath.Options) (Seen, error) {
	for {
		name = path.Dir(name)
		above, err := See(ctx, name, options)
		if !errors.Is(err, fs.ErrNotExist) || name == "/" {
			return above, err
		}
	}
}

// Record makes the proof that dir is the directory at d.Path. The caller may rename dir to d.Path later. If there is a proof of a directory
// that is gone, Record removes it first: a kill in between leaves no proof. If dir and the proof would be on different mounts, the error
// matches [ErrUnproven].
func (d Directory) Record(ctx context.Context, dir *os.File, options safepath.Options) error {
	root, err := safepath.OpenOrMake(ctx, path.Dir(d.Proof), safepath.MkdirOptions{Mode: 0o750}, options)
	if err != nil {
		return err
	}
	defer closeRoot(root)
	proofs, err := root.Directory(ctx)
	if err != nil {
		return err
	}
	defer closeFile(proofs)
	identity, err := d.identityOnMountOf(proofs, dir)
	if err != nil {
		return err
	}
	if err := replaceLink(int(proofs.Fd()), path.Base(d.Proof), identity.link()); err != nil {
		return fmt.Errorf("recording that directory %q was made: %w", d.Path, err)
	}
	return nil
}

// identityOnMountOf returns the identity of dir, which must be on the same mount as proofs.
func (d Directory) identityOnMountOf(proofs, dir *os.File) (Identity, error) {
	_, ofProofs, err := lookAt(proofs)
	if err != nil {
		return Identity{}, err
	}
	identity, ofDir, err := lookAt(dir)
	if err == nil && ofProofs != ofDir {
		err = d.hidden(dir.Name())
	}
	return identity, err
}

// hidden returns the error for a directory that a mount hides, or whose proof a mount hides.
func (d Directory) hidden(at string) error {
	return fmt.Errorf("%q and %q are on different mounts: something is mounted above one of them: unmount it: %w", at, d.Proof, ErrUnproven)
}

// replaceLink makes a link at name, and removes an existing one first. It uses no temporary name, which a kill would leave.
func replaceLink(at int, name, target string) error {
	err := unix.Symlinkat(target, at, name)
	if errors.Is(err, unix.EEXIST) {
		err = errors.Join(unix.Unlinkat(at, name, 0), unix.Symlinkat(target, at, name))
	}
	return err
}

// Open opens the directory at d.Path if the proof shows that it is the one that was made. Otherwise the error matches [ErrUnproven]. If
// the directory is missing, the error matches fs.ErrNotExist, or [ErrUnproven] if there is a proof and a mount hides the directory. The
// caller must close the root.
func (d Directory) Open(ctx context.Context, options safepath.Options) (*safepath.Root, error) {
	root, err := safepath.Open(ctx, d.Path, options)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errors.Join(d.checkNotHidden(ctx, options), err)
	}
	if err != nil {
		return nil, err
	}
	if err := d.check(ctx, root, options); err != nil {
		closeRoot(root)
		return nil, err
	}
	return root, nil
}

// check compares an open directory with the proof.
func (d Directory) check(ctx context.Context, root *safepath.Root, options safepath.Options) error {
	proven, err := d.read(ctx, options)
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%q is there without proof: look whose it is, and move it away: %w", d.Path, ErrUnproven)
	}
	if err != nil {
		return err
	}
	dir, err := root.Directory(ctx)
	if err != nil {
		return err
	}
	defer closeFile(dir)
	now, err := identityOf(dir)
	if err == nil && now != proven {
		err = fmt.Errorf("%q is another directory than the one that was made: look whose it is, and move it away or unmount it: %w",
			d.Path, ErrUnproven)
	}
	return err
}

// IsRecorded reports whether there is a proof, whatever directory it is of.
func (d Directory) IsRecorded(ctx context.Context, options safepath.Options) (bool, error) {
	_, err := d.read(ctx, options)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// read returns the identity in the proof. If there is no proof, the error matches fs.ErrNotExist.
func (d Directory) read(ctx context.Context, options safepath.Options) (Identity, error) {
	proofs, err := openDirectory(ctx, path.Dir(d.Proof), options)
	if err != nil {
		return Identity{}, err
	}
	defer closeFile(proofs)
	buffer := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(int(proofs.Fd()), path.Base(d.Proof), buffer)
	if errors.Is(err, unix.EINVAL) { // It is no link.
		err = ErrUnproven
	}
	if err != nil {
		return Identity{}, fmt.Errorf("reading the proof %q: %w", d.Proof, err)
	}
	return parseLink(string(buffer[:n]))
}

// checkNotHidden returns an error that matches ErrUnproven if there is a proof of a directory that a mount hides.
func (d Directory) checkNotHidden(ctx context.Context, options safepath.Options) error {
	if recorded, err := d.IsRecorded(ctx, options); err != nil || !recorded {
		return err
	}
	proofs, err := openDirectory(ctx, path.Dir(d.Proof), options)
	if err != nil {
		return err
	}
	defer closeFile(proofs)
	_, ofProofs, err := lookAt(proofs)
	if err != nil {
		return err
	}
	above, err := seeAbove(ctx, d.Path, options)
	if err == nil && above.Mount != ofProofs {
		err = d.hidden(d.Path)
	}
	return err
}

func openDirectory(ctx context.Context, name string, options safepath.Options) (*os.File, error) {
	root, err := safepath.Open(ctx, name, options)
	if err != nil {
		return nil, err
	}
	defer closeRoot(root)
	return root.Directory(ctx)
}

// Forget removes the proof. Call it when the directory is gone. A missing proof is no error.
func (d Directory) Forget(ctx context.Context, options safepath.Options) error {
	proofs, err := openDirectory(ctx, path.Dir(d.Proof), options)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer closeFile(proofs)
	if err := unix.Unlinkat(int(proofs.Fd()), path.Base(d.Proof), 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("removing the proof of directory %q, which is gone: %w", d.Path, err)
	}
	return nil
}

func closeRoot(root *safepath.Root) { _ = root.Close() } // nothing was written to it

func closeFile(file *os.File) { _ = file.Close() } // likewise
