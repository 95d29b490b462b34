package safepath

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/outcome"
	"github.com/volumekit/volumekit/mount"
)

// source is an open sub-path of a volume.
type source struct {
	file *os.File
	made []madeDir
}

// prepare opens the sub-path, and then mounts it. Each of the two may hang by itself. A call that hangs in a volume does not delay the
// calls that clean up.
func (s *Subpaths) prepare(ctx context.Context, name string, sub Subpath) error {
	volume, err := Open(ctx, sub.VolumePath, Options{
		Mounter: s.mounter, FollowLinks: sub.FollowVolumePath, Without: s.without, calls: s.calls,
	})
	if err != nil {
		return err
	}
	defer closeRoot(volume)
	if err := checkApart(ctx, volume, sub.Apart); err != nil {
		return err
	}
	src, err := volume.openSource(ctx, name, sub)
	if err != nil {
		return err
	}
	defer closeFile(src.file)
	if err = s.checkSource(ctx, src.file, sub); err == nil {
		err = s.place(ctx, src.file, sub)
	}
	if err == nil || outcome.IsUncertain(err) {
		return err
	}
	return errors.Join(err, volume.unmakeSource(ctx, name, src.made))
}

func checkApart(ctx context.Context, dir *Root, apart []string) error {
	if len(apart) == 0 {
		return nil
	}
	return dir.checkApart(ctx, apart...)
}

// checkSource compares a directory in the volume with the paths that the volume must be apart from: one of them may be mounted in the
// volume. A file needs no check: it contains no other path.
func (s *Subpaths) checkSource(ctx context.Context, src *os.File, sub Subpath) error {
	dir, err := fromFile(src, Options{Mounter: s.mounter, Without: s.without, calls: s.calls})
	var kind *KindError
	if errors.As(err, &kind) {
		return nil
	}
	if err != nil {
		return err
	}
	defer closeRoot(dir)
	return checkApart(ctx, dir, sub.Apart)
}

// closeRoot closes a root to which nothing was written.
func closeRoot(r *Root) { _ = r.Close() }

// openSource opens the sub-path of the volume, and makes it if it is missing.
func (r *Root) openSource(ctx context.Context, name string, sub Subpath) (source, error) {
	discard := func(src source) { closeFile(src.file) }
	return do(ctx, r.to("open", name), discard, func(ctx context.Context, t *tree) (source, error) {
		src, err := t.openSource(ctx, name, sub)
		if err == nil && ctx.Err() != nil { // the caller does not wait any more
			closeFile(src.file)
			return source{}, errors.Join(ctx.Err(), t.unmake(ctx, src.made))
		}
		return src, err
	})
}

func (t *tree) openSource(ctx context.Context, name string, sub Subpath) (src source, err error) {
	if !sub.FollowInside {
		return t.openOrMake(ctx, name, sub.Kinds)
	}
	for range maxTries {
		var resolved string
		if resolved, err = t.resolve(ctx, name); err == nil {
			src, err = t.openOrMake(ctx, resolved, sub.Kinds)
		}
		if !errors.Is(err, unix.ELOOP) {
			return src, err
		}
		// A link has come since it was resolved.
	}
	return source{}, fmt.Errorf("after %d tries: %w: %w", maxTries, ErrRaced, err)
}

func (t *tree) openOrMake(ctx context.Context, name string, kinds Kind) (source, error) {
	fd, err := t.openKind(ctx, name, kinds)
	switch {
	case err == nil:
		return source{file: os.NewFile(uintptr(fd), name)}, nil
	case errors.Is(err, unix.ENOENT) && kinds&Directory != 0:
		return t.makeSource(ctx, name)
	}
	return source{}, err
}

// makeSource makes the directory at name, with the mode and the group of the volume's root.
func (t *tree) makeSource(ctx context.Context, name string) (source, error) {
	root, err := statx(t.fd, "", 0)
	if err != nil {
		return source{}, err
	}
	group := int(root.GID)
	options := MkdirOptions{Mode: fileMode(root.Mode), Group: &group}
	fd, made, err := t.makeDirs(ctx, name, how{directory: true}, options)
	if err != nil {
		return source{}, errors.Join(err, t.unmake(ctx, made))
	}
	return source{os.NewFile(uintptr(fd), name), made}, nil
}

// unmakeSource removes the directories that were made for the sub-path.
func (r *Root) unmakeSource(ctx context.Context, name string, made []madeDir) error {
	if len(made) == 0 {
		return nil
	}
	_, err := do(ctx, r.to("remove", name), ignore, func(ctx context.Context, t *tree) (struct{}, error) {
		return struct{}{}, t.unmake(ctx, made)
	})
	return err
}

// place mounts the source at the host path of the sub-path.
func (s *Subpaths) place(ctx context.Context, src *os.File, sub Subpath) error {
	_, err := run(ctx, s.calls, sub.key(), ignore, func(ctx context.Context) (struct{}, error) {
		var err error
		usedErr := use(src, func(fd int) { err = s.placeFD(ctx, fd, sub) })
		return struct{}{}, errors.Join(usedErr, err)
	})
	return err
}

func (s *Subpaths) placeFD(ctx context.Context, src int, sub Subpath) error {
	now, err := look(src, "")
	if err != nil {
		return err
	}
	pod, err := s.openPod(ctx, sub.PodDir)
	if err != nil {
		return err
	}
	defer closeFD(pod.fd)
	fd, _, err := pod.makeDirs(ctx, sub.containerName(), how{directory: true, oneMount: true}, MkdirOptions{})
	if err != nil {
		return errors.Join(foreignError(err), pod.prune(ctx, sub.Owner))
	}
	defer closeFD(fd)
	c := &container{tree: pod, fd: fd, dir: sub.containerDir(), mounter: s.mounter}
	err = c.place(ctx, src, now, sub)
	if err == nil || outcome.IsUncertain(err) {
		return err
	}
	return errors.Join(err, pod.prune(ctx, sub.Owner))
}

// openPod opens the directory of a pod.
func (s *Subpaths) openPod(ctx context.Context, dir string) (*tree, error) {
	file, err := openRoot(ctx, dir, Options{Without: s.without})
	if err != nil {
		return nil, fmt.Errorf("the pod's directory %q: %w", dir, err)
	}
	defer closeFile(file)
	pod := &tree{without: s.without}
	usedErr := use(file, func(fd int) { pod.fd, err = openat(fd, ".", unix.O_PATH|unix.O_DIRECTORY) })
	return pod, errors.Join(usedErr, err)
}

// foreignError makes the error for a mount in the pod's directory match mount.ErrForeign.
func foreignError(err error) error {
	if errors.Is(err, ErrMounted) {
		return fmt.Errorf("%w: unmount it first: %w", mount.ErrForeign, err)
	}
	return err
}

// container is the directory of one container's sub-paths of one volume.
type container struct {
	tree    *tree
	fd      int
	dir     string // its host path
	mounter mount.Interface
}

// place mounts the source at the sub-path's index, unless it is there already.
func (c *container) place(ctx context.Context, src int, now stat, sub Subpath) error {
	entries, err := c.entries()
	if err != nil {
		return err
	}
	want := newMark(sub, now.id)
	there := entries[sub.VolumeMountIndex]
	isReady, err := c.isReady(ctx, there, want)
	if isReady || err != nil {
		return err
	}
	if err := c.cleanEntry(ctx, there, mount.UnmountOptions{}); err != nil {
		return err
	}
	if err := c.tree.createMark(c.fd, want.name()); err != nil {
		return err
	}
	err = c.bind(ctx, src, want, sub)
	if err == nil || outcome.IsUncertain(err) {
		return err
	}
	return errors.Join(err, unlinkGone(c.fd, want.name()))
}

// bind mounts the source, and verifies that it is mounted.
func (c *container) bind(ctx context.Context, src int, want mark, sub Subpath) error {
	target := sub.HostPath()
	if err := bindFD(ctx, c.mounter, sub.request(fdPath(src), target)); err != nil {
		return err
	}
	top, err := look(c.fd, fmt.Sprint(want.index))
	if err == nil && top.id == want.id {
		return nil
	}
	err = errors.Join(fmt.Errorf("what was mounted is not what was opened: is /proc mounted? %w", ErrEscapes), err)
	undoErr := mount.UnmountPath(context.WithoutCancel(ctx), c.mounter, target, mount.UnmountOptions{})
	if undoErr != nil {
		return fmt.Errorf("%w: it is mounted, since undoing that failed: %w", mount.ErrUncertain, errors.Join(err, undoErr))
	}
	return err
}

// isReady reports whether the sub-path is mounted with the wanted source and access.
func (c *container) isReady(ctx context.Context, e entry, want mark) (bool, error) {
	if !e.isTarget || !slices.Contains(e.marks, want) {
		return false, nil
	}
	found, err := c.mounter.Lookup(ctx, c.target(want.index))
	if errors.Is(err, mount.ErrNotMounted) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	// A process may have made it writable since.
	if want.access == "ro" && !slices.Contains(found.Options, "ro") {
		return false, nil
	}
	top, err := look(c.fd, fmt.Sprint(want.index))
	return err == nil && top.id == want.id, nil
}

// createMark makes a mark.
func (t *tree) createMark(at int, name string) error {
	const flags = unix.O_CREAT | unix.O_WRONLY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := retry(func() (int, error) { return unix.Openat(at, name, flags, 0o600) })
	if err != nil {
		return fmt.Errorf("making a mark: %w", err)
	}
	closeFD(fd)
	return nil
}

// fileMode is the inverse of unixMode.
func fileMode(bits uint16) fs.FileMode {
	mode := fs.FileMode(bits & 0o777)
	for flag, bit := range map[fs.FileMode]uint16{
		fs.ModeSetuid: unix.S_ISUID, fs.ModeSetgid: unix.S_ISGID, fs.ModeSticky: unix.S_ISVTX,
	} {
		if bits&bit != 0 {
			mode |= flag
		}
	}
	return mode
}
