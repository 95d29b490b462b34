package safepath

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/mount"
)

// entry is what is known by names of one index.
type entry struct {
	index    int
	isTarget bool
	marks    []mark
}

// clean is CleanContainer, and CleanVolume when the owner has no container.
func (s *Subpaths) clean(ctx context.Context, owner Owner, options mount.UnmountOptions) error {
	_, err := run(ctx, s.calls, owner.key(), ignore, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, s.cleanOwner(ctx, owner, options)
	})
	return err
}

func (s *Subpaths) cleanOwner(ctx context.Context, owner Owner, options mount.UnmountOptions) error {
	pod, err := s.openPod(ctx, owner.PodDir)
	if err != nil {
		return ignoreGone(err)
	}
	defer closeFD(pod.fd)
	containers := []string{owner.ContainerName}
	if owner.ContainerName == "" {
		if containers, err = pod.list(ctx, owner.volumeName()); err != nil {
			return err
		}
	}
	var errs []error
	for _, name := range containers {
		one := Owner{PodDir: owner.PodDir, VolumeName: owner.VolumeName, ContainerName: name}
		errs = append(errs, s.cleanContainer(ctx, pod, one, options))
	}
	err = pod.removeEmpty(ctx, owner.volumeName())
	if !errors.Is(err, unix.ENOTEMPTY) {
		return errors.Join(append(errs, err, ignoreNotEmpty(pod.removeEmpty(ctx, SubpathsDir)))...)
	}
	if owner.ContainerName == "" && errors.Join(errs...) == nil {
		return err
	}
	return errors.Join(errs...)
}

// volumes is Volumes.
func (s *Subpaths) volumes(ctx context.Context, podDir string) ([]string, error) {
	pod, err := s.openPod(ctx, podDir)
	if err != nil {
		return nil, ignoreGone(err)
	}
	defer closeFD(pod.fd)
	names, err := pod.list(ctx, SubpathsDir)
	slices.Sort(names)
	return names, err
}

// list returns the names in a directory of ours; none when it is not there.
func (t *tree) list(ctx context.Context, name string) ([]string, error) {
	path, err := t.openPath(ctx, t.fd, name, how{directory: true, oneMount: true})
	if err != nil {
		return nil, foreignError(ignoreGone(err))
	}
	defer closeFD(path)
	return namesIn(path)
}

// namesIn returns the names in an open directory.
func namesIn(path int) ([]string, error) {
	fd, err := openat(path, ".", unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	dir := os.NewFile(uintptr(fd), "directory")
	defer closeFile(dir)
	return dir.Readdirnames(-1)
}

func (s *Subpaths) cleanContainer(ctx context.Context, pod *tree, owner Owner, options mount.UnmountOptions) error {
	fd, err := pod.openPath(ctx, pod.fd, owner.containerName(), how{directory: true, oneMount: true})
	if err != nil {
		return foreignError(ignoreGone(err))
	}
	defer closeFD(fd)
	c := &container{tree: pod, fd: fd, dir: owner.containerDir(), mounter: s.mounter}
	entries, err := c.entries()
	if err != nil {
		return err
	}
	var errs []error
	for _, index := range slices.Sorted(maps.Keys(entries)) {
		if err := c.cleanEntry(ctx, entries[index], options); err != nil {
			errs = append(errs, fmt.Errorf("%q: %w", c.target(index), err))
		}
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	return pod.removeEmpty(ctx, owner.containerName())
}

func (c *container) target(index int) string { return path.Join(c.dir, strconv.Itoa(index)) }

// entries reads the container's directory. It looks at names only, since what is mounted there may be dead. Names that are
// not ours are left out; they keep the directory from being removed.
func (c *container) entries() (map[int]entry, error) {
	names, err := namesIn(c.fd)
	if err != nil {
		return nil, err
	}
	entries := map[int]entry{}
	for _, name := range names {
		if index, ok := parseIndex(name); ok {
			e := entries[index]
			e.index, e.isTarget = index, true
			entries[index] = e
		}
		if m, ok := parseMark(name); ok {
			e := entries[m.index]
			e.index, e.marks = m.index, append(e.marks, m)
			entries[m.index] = e
		}
	}
	return entries, nil
}

// cleanEntry takes off what is mounted at an index, if it is ours, and removes the mount point and then the marks.
func (c *container) cleanEntry(ctx context.Context, e entry, options mount.UnmountOptions) error {
	if e.isTarget {
		if err := c.unmount(ctx, e, options); err != nil {
			return err
		}
		if err := ended(c.mounter.RemoveTarget(ctx, c.target(e.index))); err != nil {
			return err
		}
	}
	for _, m := range e.marks {
		if err := unlinkGone(c.fd, m.name()); err != nil {
			return err
		}
	}
	return nil
}

// unmount takes off what is mounted at an index, if it is ours.
func (c *container) unmount(ctx context.Context, e entry, options mount.UnmountOptions) error {
	target := c.target(e.index)
	found, err := c.mounter.Lookup(ctx, target)
	if errors.Is(err, mount.ErrNotMounted) {
		return nil
	}
	if err == nil {
		err = c.checkOurs(e, found)
	}
	if err != nil {
		return err
	}
	options.Expect = found.Identity()
	err = ended(c.mounter.Unmount(ctx, target, options))
	if errors.Is(err, mount.ErrNotMounted) {
		return nil // another process was faster
	}
	return err
}

// checkOurs refuses a mount whose root is not what a mark says. Of a filesystem that does not even tell its inode number
// the device has to do.
func (c *container) checkOurs(e entry, found mount.MountPoint) error {
	top, err := look(c.fd, strconv.Itoa(e.index))
	isOurs := func(m mark) bool { return m.id == top.id }
	if err != nil {
		isOurs = func(m mark) bool { return m.id.major == found.Major && m.id.minor == found.Minor }
	}
	if slices.ContainsFunc(e.marks, isOurs) {
		return nil
	}
	return fmt.Errorf("%s %q is mounted there, which is not the sub-path; it was left alone: %w",
		found.FSType, found.Root, mount.ErrForeign)
}

// prune removes the directories of a container, of its volume and of all sub-paths, as far as they are empty.
func (t *tree) prune(ctx context.Context, owner Owner) error {
	ctx = context.WithoutCancel(ctx) // what was made goes also when the caller has gone
	for _, name := range []string{owner.containerName(), owner.volumeName(), SubpathsDir} {
		if err := t.removeEmpty(ctx, name); err != nil {
			return ignoreNotEmpty(err)
		}
	}
	return nil
}

// removeEmpty removes a directory of ours. What is in it is not, then, and the error matches unix.ENOTEMPTY.
func (t *tree) removeEmpty(ctx context.Context, name string) error {
	dir, base := splitName(name)
	at, err := t.openPath(ctx, t.fd, dir, how{directory: true, oneMount: true})
	if err != nil {
		return foreignError(ignoreGone(err))
	}
	defer closeFD(at)
	if err := ignoreGone(unlinkat(at, base, unix.AT_REMOVEDIR)); err != nil {
		return fmt.Errorf("removing %q: %w", name, foreignError(err))
	}
	return nil
}

func ignoreNotEmpty(err error) error {
	if errors.Is(err, unix.ENOTEMPTY) {
		return nil
	}
	return err
}

// unlinkGone removes a file; one that is gone is no error.
func unlinkGone(at int, name string) error { return ignoreGone(unlinkat(at, name, 0)) }
