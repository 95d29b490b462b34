package mount

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/abandonable"
)

// maxTries limits the repetitions of a call that the kernel interrupts or that loses against a rename.
const maxTries = 128

// errNoSyscall: the kernel lacks a system call. The caller uses its fall-back.
var errNoSyscall = errors.New("no such system call")

// missing marks err as errNoSyscall if the kernel lacks the call. A seccomp filter returns EPERM for a call that it denies. If the
// EPERM is real, the fall-back returns it again.
func missing(err error) error {
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) {
		return fmt.Errorf("%w: %w", errNoSyscall, err)
	}
	return err
}

// retry repeats a call that returns EINTR or EAGAIN. The Go runtime sends signals to its own threads, and a FUSE server may answer
// EINTR to such a signal. openat2 returns EAGAIN after a race with a rename.
func retry(call func() error) (err error) {
	for range maxTries {
		if err = call(); !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EAGAIN) {
			return err
		}
	}
	return err
}

// retryOpen is retry for a call that returns a descriptor.
func retryOpen(open func() (int, error)) (fd int, err error) {
	err = retry(func() (err error) {
		fd, err = open()
		return err
	})
	return fd, err
}

// closeFD closes a descriptor without an error: nothing was written to it.
func closeFD(fd int) { _ = unix.Close(fd) }

// fdPath is a path of an open descriptor, for calls that take only paths. The kernel follows it to the open file itself.
func fdPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// openPath opens name below the directory at, as O_PATH, and follows no symbolic link in any of its elements.
func (r *reader) openPath(at int, name string) (int, error) {
	fd, err := r.openat2(at, name)
	if errors.Is(err, errNoSyscall) {
		return walk(at, name)
	}
	return fd, err
}

func (r *reader) openat2(at int, name string) (int, error) {
	if r.without.has(FeatureOpenat2) {
		return -1, errNoSyscall
	}
	how := &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_CLOEXEC, // O_NOFOLLOW would open a link instead of refusing it
		Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	}
	fd, err := retryOpen(func() (int, error) { return unix.Openat2(at, name, how) })
	if err != nil {
		return -1, missing(err)
	}
	return fd, nil
}

// walk opens one element of name after the other.
func walk(at int, name string) (int, error) {
	start := "."
	if strings.HasPrefix(name, "/") {
		start = "/"
	}
	fd, err := unix.Openat(at, start, unix.O_PATH|unix.O_CLOEXEC|unix.O_DIRECTORY, 0)
	for element := range strings.SplitSeq(strings.Trim(name, "/"), "/") {
		if err != nil {
			return -1, err
		}
		if element == "" {
			continue
		}
		var next int
		next, err = step(fd, element)
		closeFD(fd)
		fd = next
	}
	return fd, err
}

// step opens one element, which must not be a symbolic link.
func step(at int, element string) (int, error) {
	const flags = unix.O_PATH | unix.O_CLOEXEC | unix.O_NOFOLLOW
	fd, err := retryOpen(func() (int, error) { return unix.Openat(at, element, flags, 0) })
	if err != nil {
		return -1, err
	}
	mode, err := modeOf(fd)
	if err == nil && mode&unix.S_IFMT == unix.S_IFLNK {
		err = unix.ELOOP
	}
	if err != nil {
		closeFD(fd)
		return -1, err
	}
	return fd, nil
}

// modeOf returns the mode of an open file, without a query of its server.
func modeOf(fd int) (uint32, error) {
	var stat unix.Stat_t
	var statx unix.Statx_t
	const flags = unix.AT_EMPTY_PATH | unix.AT_STATX_DONT_SYNC | unix.AT_NO_AUTOMOUNT
	err := unix.Statx(fd, "", flags, unix.STATX_TYPE, &statx)
	if !errors.Is(err, unix.ENOSYS) {
		return uint32(statx.Mode), err
	}
	err = unix.Fstat(fd, &stat)
	return stat.Mode, err
}

// target is a mount point.
type target struct {
	*entry
	fd   int  // descriptor; -1 for a mount point that was made, until it is opened
	made bool // this call made it; its parents are in entry.made
	dir  bool
}

// The modes of what is made, less the umask.
const (
	dirMode  = 0o750
	fileMode = 0o640
)

// openTarget opens the mount point, or makes it: a directory, or a file. It does not open one that it has made: nothing is
// mounted on it, and its name in the open directory is enough.
func (p *entry) openTarget(ctx context.Context, dir bool) (*target, error) {
	t := &target{entry: p, dir: dir, fd: -1}
	if !p.isNew() {
		if err := t.open(); !errors.Is(err, unix.ENOENT) {
			return t, err
		}
	}
	var err error
	if t.made, err = t.make(ctx); err != nil {
		return nil, fmt.Errorf("making the mount point: %w", err)
	}
	if t.made {
		return t, nil
	}
	return t, t.open() // another process has made it meanwhile
}

// open opens the mount point, unless it is open.
func (t *target) open() (err error) {
	if t.fd < 0 {
		t.fd, err = t.entry.open()
	}
	return err
}

func (t *target) close() {
	if t.fd >= 0 {
		closeFD(t.fd)
	}
}

// checkExclusive refuses a target at which something is mounted, if the plan is exclusive.
func (t *target) checkExclusive(ctx context.Context, plan *Plan) error {
	if !plan.Exclusive || t.made {
		return nil
	}
	is, err := t.mounted(ctx)
	if is {
		return ErrMounted
	}
	return err
}

// take attaches a detached mount to the target: to the open descriptor, or by name to a mount point that was made. By name it does
// not follow a link that another process has put there.
func (t *target) take(tree int) error {
	if t.fd < 0 {
		return unix.MoveMount(tree, "", t.parent, t.base, unix.MOVE_MOUNT_F_EMPTY_PATH)
	}
	return unix.MoveMount(tree, "", t.fd, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
}

// make makes the mount point, and its parent if another process has removed that. It reports whether it was missing.
func (t *target) make(ctx context.Context) (made bool, err error) {
	for range maxTries {
		if err := abandonable.Begin(ctx, "mkdirat"); err != nil {
			return false, err
		}
		if err = t.mknod(); !errors.Is(err, unix.ENOENT) {
			break
		}
		if err := t.makeParent(ctx); err != nil {
			return false, err
		}
	}
	if errors.Is(err, unix.EEXIST) {
		return false, nil
	}
	return err == nil, err
}

// mknod makes a directory or an empty file.
func (t *target) mknod() error {
	if t.dir {
		return unix.Mkdirat(t.parent, t.base, dirMode)
	}
	flags := unix.O_CREAT | unix.O_EXCL | unix.O_WRONLY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := unix.Openat(t.parent, t.base, flags, fileMode)
	if err == nil {
		closeFD(fd)
	}
	return err
}

// unmake removes a mount point that was made. The kernel refuses if something is mounted on it, or if a directory is not empty.
func (t *target) unmake() error {
	if !t.made {
		return nil
	}
	flags := 0
	if t.dir {
		flags = unix.AT_REMOVEDIR
	}
	if err := unix.Unlinkat(t.parent, t.base, flags); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("removing the mount point that was made: %w", err)
	}
	return nil
}

// removeTarget is RemoveTarget.
func (m *Mounter) removeTarget(ctx context.Context, name string) error {
	p, err := m.reader.openParent(ctx, name)
	if isAbsent(err) {
		return nil // nothing can be removed below a parent that is not there
	}
	if err != nil {
		return err
	}
	defer p.close()
	err = p.remove(ctx)
	switch {
	case err == nil:
		reportRemoved(ctx, name)
		return nil
	case errors.Is(err, unix.ENOENT):
		return nil
	case errors.Is(err, unix.EBUSY):
		return fmt.Errorf("removing %q: it is a mount point; unmount it first: %w", name, err)
	}
	return fmt.Errorf("removing %q: %w", name, err)
}

// remove removes an empty directory or an empty file. The kernel refuses one on which something is mounted, without a query of
// the filesystem there.
func (p *entry) remove(ctx context.Context) error {
	if err := abandonable.Begin(ctx, "rmdir"); err != nil {
		return err
	}
	err := unix.Unlinkat(p.parent, p.base, unix.AT_REMOVEDIR)
	if !errors.Is(err, unix.ENOTDIR) {
		return err
	}
	mounted, err := p.mounted(ctx)
	if mounted {
		return unix.EBUSY
	}
	if err != nil {
		return err
	}
	abandonable.Note(ctx, "fstatat")
	stat, err := p.stat()
	switch {
	case err != nil:
		return err
	case stat.Mode&unix.S_IFMT != unix.S_IFREG:
		return fmt.Errorf("neither a directory nor a file: %w", unix.ENOTDIR)
	case stat.Size > 0:
		return fmt.Errorf("a file of %d bytes is no mount point: %w", stat.Size, unix.ENOTEMPTY)
	}
	abandonable.Note(ctx, "unlink")
	return unix.Unlinkat(p.parent, p.base, 0)
}

// isAbsent reports whether err says that a path or its parent does not exist.
func isAbsent(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR)
}
