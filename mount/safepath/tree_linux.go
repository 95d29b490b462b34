package safepath

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/abandonable"
	"github.com/volumekit/volumekit/internal/descriptor"
	"github.com/volumekit/volumekit/mount"
)

// maxTries bounds the repetition of what was interrupted, or lost against a process that renames.
const maxTries = 128

// errNoSyscall says that a system call is missing or forbidden, so that the fall-back is to be tried.
var errNoSyscall = errors.New("no such system call")

// tree is an open directory beneath which is worked, for the time of one call.
type tree struct {
	fd      int
	without mount.Feature
}

// how says how a name is resolved.
type how struct {
	// directory wants a directory; an automount there is triggered.
	directory bool
	// oneMount enters no mount: the error then matches ErrMounted.
	oneMount bool
}

// retry repeats a call that was interrupted, or that the kernel asks to repeat because of a rename. It stops after
// maxTries.
func retry(call func() (int, error)) (fd int, err error) {
	for range maxTries {
		fd, err = call()
		if !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EAGAIN) {
			return fd, err
		}
	}
	if errors.Is(err, unix.EAGAIN) {
		err = fmt.Errorf("after %d tries: %w: %w", maxTries, ErrRaced, err)
	}
	return -1, err
}

// closeFD closes a descriptor from which nothing was written.
func closeFD(fd int) { _ = unix.Close(fd) }

// fdPath is the name of a descriptor for calls that take only paths. The kernel follows it to what is open.
func fdPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// openPath opens name beneath the directory at, without access. It follows no link.
func (t *tree) openPath(ctx context.Context, at int, name string, h how) (int, error) {
	if err := abandonable.Begin(ctx, "openat2"); err != nil {
		return -1, err
	}
	fd, err := t.openat2(at, name, unix.O_PATH, h)
	if errors.Is(err, errNoSyscall) {
		fd, err = t.walk(ctx, at, name, h)
	}
	return fd, h.explain(err)
}

// openat2 opens name with the access that flags give.
func (t *tree) openat2(at int, name string, flags uint64, h how) (int, error) {
	if t.without&mount.FeatureOpenat2 != 0 {
		return -1, errNoSyscall
	}
	o := &unix.OpenHow{
		Flags:   flags | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	}
	if strings.HasPrefix(name, "/") {
		o.Resolve &^= unix.RESOLVE_BENEATH // which is for what is relative; the path of a root has no ".."
	}
	if h.directory {
		o.Flags |= unix.O_DIRECTORY
	}
	if h.oneMount {
		o.Resolve |= unix.RESOLVE_NO_XDEV
	}
	fd, err := retry(func() (int, error) { return unix.Openat2(at, name, o) })
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) {
		return -1, fmt.Errorf("%w: %w", errNoSyscall, err)
	}
	return fd, err
}

// explain adds what the errno of a resolved name means here.
func (h how) explain(err error) error {
	switch {
	case errors.Is(err, unix.ELOOP):
		return fmt.Errorf("an element is a symbolic link: %w: %w", ErrEscapes, err)
	case errors.Is(err, unix.EXDEV) && h.oneMount:
		return fmt.Errorf("%w: %w", ErrMounted, err)
	case errors.Is(err, unix.EXDEV):
		return fmt.Errorf("%w: %w", ErrEscapes, err)
	}
	return err
}

// walk opens one element after the other.
func (t *tree) walk(ctx context.Context, at int, name string, h how) (int, error) {
	start := "."
	if beneath, isAbsolute := strings.CutPrefix(name, "/"); isAbsolute {
		start, name = "/", cmp.Or(beneath, ".")
	}
	fd, err := unix.Openat(at, start, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if name == "." {
		return fd, err
	}
	elements := strings.Split(name, "/")
	for i, element := range elements {
		if err == nil {
			err = abandonable.Begin(ctx, "openat")
		}
		if err != nil {
			break
		}
		isLast := i == len(elements)-1
		next, nextErr := t.enter(fd, element, how{directory: h.directory || !isLast, oneMount: h.oneMount})
		closeFD(fd)
		fd, err = next, nextErr
	}
	if err != nil && fd >= 0 {
		closeFD(fd)
		fd = -1
	}
	return fd, err
}

// enter opens one element, which must not be a link.
func (t *tree) enter(at int, element string, h how) (int, error) {
	const flags = unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC
	if h.directory && !h.oneMount {
		// With this flag the kernel mounts what is to be mounted on demand.
		fd, err := openat(at, element, flags|unix.O_DIRECTORY)
		if !errors.Is(err, unix.ENOTDIR) {
			return fd, err
		}
	}
	fd, err := openat(at, element, flags)
	if err != nil {
		return -1, err
	}
	if err = t.checkEntered(at, fd, h); err != nil {
		closeFD(fd)
		return -1, err
	}
	return fd, nil
}

// checkEntered refuses what openat2 would have refused.
func (t *tree) checkEntered(at, fd int, h how) error {
	stat, err := look(fd, "")
	switch {
	case err != nil:
		return err
	case stat.Mode&unix.S_IFMT == unix.S_IFLNK:
		return unix.ELOOP
	}
	if h.oneMount {
		if err := t.sameMount(at, fd); err != nil {
			return err
		}
	}
	if h.directory && stat.Mode&unix.S_IFMT != unix.S_IFDIR {
		return unix.ENOTDIR
	}
	return nil
}

func openat(at int, name string, flags int) (int, error) {
	return retry(func() (int, error) { return unix.Openat(at, name, flags|unix.O_CLOEXEC, 0) })
}

// stat is what is known of an open file or of a name. Device and inode tell it from every other as long as it exists.
type stat struct {
	id    fileID
	Mode  uint16
	UID   uint32
	GID   uint32
	mount uint64 // id of the mount; 0 when not known
}

// fileID tells a file from others.
type fileID struct {
	major, minor uint32
	inode        uint64
}

// look describes what is at name in the directory at, or with an empty name what is open. It follows no link, triggers no
// automount and asks no server: on a filesystem that hangs it answers with what the kernel knows.
func look(at int, name string) (stat, error) {
	return statx(at, name, unix.AT_STATX_DONT_SYNC)
}

func statx(at int, name string, flags int) (stat, error) {
	flags |= unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT
	if name == "" {
		flags |= unix.AT_EMPTY_PATH
	}
	const mask = unix.STATX_TYPE | unix.STATX_MODE | unix.STATX_UID | unix.STATX_GID | unix.STATX_INO | unix.STATX_MNT_ID
	var x unix.Statx_t
	_, err := retry(func() (int, error) { return 0, unix.Statx(at, name, flags, mask, &x) })
	if err != nil {
		return stat{}, err
	}
	s := stat{id: fileID{x.Dev_major, x.Dev_minor, x.Ino}, Mode: x.Mode, UID: x.Uid, GID: x.Gid}
	if x.Mask&unix.STATX_MNT_ID != 0 {
		s.mount = x.Mnt_id
	}
	return s, nil
}

// sameMount fails with EXDEV when two descriptors were opened on different mounts. Device numbers do not tell: a bind of
// the same filesystem has the same.
func (t *tree) sameMount(a, b int) error {
	one, err := t.mountID(a)
	if err != nil {
		return err
	}
	two, err := t.mountID(b)
	if err != nil {
		return err
	}
	if one != two {
		return unix.EXDEV
	}
	return nil
}

// mountID returns the id of the mount that fd was opened on: from statx since Linux 5.8, else from proc(5).
func (t *tree) mountID(fd int) (uint64, error) {
	if t.without&mount.FeatureStatxMountRoot == 0 {
		if s, err := look(fd, ""); err == nil && s.mount != 0 {
			return s.mount, nil
		}
	}
	id, err := descriptor.MountID(fd)
	if errors.Is(err, errors.ErrUnsupported) {
		err = fmt.Errorf("%w: %w", mount.ErrUnsupported, err)
	}
	return id, err
}

var kinds = map[uint16]Kind{
	unix.S_IFDIR: Directory, unix.S_IFREG: RegularFile, unix.S_IFSOCK: Socket, unix.S_IFIFO: Fifo,
	unix.S_IFCHR: Device, unix.S_IFBLK: Device,
}

// openKind opens name without access, if it is of one of the kinds.
func (t *tree) openKind(ctx context.Context, name string, want Kind) (int, error) {
	fd, err := -1, error(unix.ENOTDIR)
	if want&Directory != 0 {
		if fd, err = t.openPath(ctx, t.fd, name, how{directory: true}); err == nil {
			return fd, nil
		}
	}
	if errors.Is(err, unix.ENOTDIR) {
		fd, err = t.openPath(ctx, t.fd, name, how{})
	}
	if err != nil {
		return -1, err
	}
	if err := checkKind(fd, want); err != nil {
		closeFD(fd)
		return -1, err
	}
	return fd, nil
}

func checkKind(fd int, want Kind) error {
	s, err := look(fd, "")
	if err != nil {
		return err
	}
	if got := kinds[s.Mode&unix.S_IFMT]; got&want == 0 {
		return &KindError{Want: want, Got: got}
	}
	return nil
}

func (t *tree) openPathFile(ctx context.Context, name string, want Kind) (*os.File, error) {
	fd, err := t.openKind(ctx, name, want)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

func (t *tree) openFile(ctx context.Context, name string, want Kind) (*os.File, error) {
	path, err := t.openKind(ctx, name, want)
	if err != nil {
		return nil, err
	}
	defer closeFD(path)
	fd, err := t.reopen(ctx, path)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// openOnMount opens the directory at name, without access and on the same mount.
func (t *tree) openOnMount(ctx context.Context, name string) (*os.File, error) {
	fd, err := t.openPath(ctx, t.fd, name, how{directory: true, oneMount: true})
	return newFile(fd, name, err)
}

// openDirectory opens the directory of the tree for reading.
func (t *tree) openDirectory(ctx context.Context, name string) (*os.File, error) {
	fd, err := t.reopen(ctx, t.fd)
	return newFile(fd, name, err)
}

// reopen opens for reading what is open without access already.
func (t *tree) reopen(ctx context.Context, path int) (int, error) {
	before, err := look(path, "")
	if err != nil {
		return -1, err
	}
	if err := abandonable.Begin(ctx, "open"); err != nil {
		return -1, err
	}
	if before.Mode&unix.S_IFMT == unix.S_IFDIR {
		return openat(path, ".", unix.O_RDONLY|unix.O_DIRECTORY)
	}
	fd, err := openat(unix.AT_FDCWD, fdPath(path), unix.O_RDONLY|unix.O_NOCTTY)
	if err != nil {
		return -1, err
	}
	// Who gives this process another /proc could lead it elsewhere.
	if after, err := look(fd, ""); err != nil || after.id != before.id {
		closeFD(fd)
		return -1, errors.Join(fmt.Errorf("%s leads elsewhere: is /proc mounted? %w", fdPath(path), ErrEscapes), err)
	}
	return fd, nil
}

// openRoot opens the directory of a root by its path.
func openRoot(ctx context.Context, path string, options Options) (*os.File, error) {
	if options.FollowLinks {
		if err := abandonable.Begin(ctx, "open"); err != nil {
			return nil, err
		}
		fd, err := openat(unix.AT_FDCWD, path, unix.O_PATH|unix.O_DIRECTORY)
		return newFile(fd, path, err)
	}
	t := &tree{fd: unix.AT_FDCWD, without: options.Without}
	fd, err := t.openKind(ctx, path, Directory)
	return newFile(fd, path, err)
}

func newFile(fd int, name string, err error) (*os.File, error) {
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// duplicate returns a second descriptor of an open directory.
func duplicate(dir *os.File) (file *os.File, err error) {
	usedErr := use(dir, func(fd int) {
		var s stat
		if s, err = look(fd, ""); err != nil {
			return
		}
		if got := kinds[s.Mode&unix.S_IFMT]; got != Directory {
			err = &KindError{Want: Directory, Got: got}
			return
		}
		fd, err = openat(fd, ".", unix.O_PATH|unix.O_DIRECTORY)
		file, err = newFile(fd, dir.Name(), err)
	})
	return file, errors.Join(usedErr, err)
}

// publicErrno is the kernel's word for an errno, which says nothing of the host.
func publicErrno(err error) string {
	var errno unix.Errno
	if errors.As(err, &errno) {
		return errno.Error()
	}
	return "it failed; the node's operator can see why"
}

// unixMode is mode in the bits of chmod(2).
func unixMode(mode fs.FileMode) uint32 {
	bits := uint32(mode.Perm())
	for flag, bit := range map[fs.FileMode]uint32{
		fs.ModeSetuid: unix.S_ISUID, fs.ModeSetgid: unix.S_ISGID, fs.ModeSticky: unix.S_ISVTX,
	} {
		if mode&flag != 0 {
			bits |= bit
		}
	}
	return bits
}
