package treewalk

import (
	"errors"
	"io/fs"
	"runtime"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/descriptor"
)

// The errors of a walk, beside *fs.PathError and that of its context.
var (
	// ErrMoved matches the failure of a directory that was moved or replaced while the walk needed it, so that what is in
	// it may not have been visited. Walk again.
	ErrMoved = errors.New("the directory was moved while the tree was walked")
	// ErrForeign says that an entry is the root of another mount.
	ErrForeign = errors.New("it is another mount")
	// ErrStopped says that a visitor has ended the walk.
	ErrStopped = errors.New("the walk was stopped by its visitor")
)

// Feature is a set of system calls that a kernel or a seccomp filter may lack.
type Feature uint8

const (
	// FeatureOpenat2 is openat2(2), Linux 5.6. The fall-back opens one path element after the other.
	FeatureOpenat2 Feature = 1 << iota
	// FeatureMountRoot is STATX_ATTR_MOUNT_ROOT, Linux 5.8. The fall-back compares mount ids in /proc/self/fdinfo, which
	// costs four system calls for each entry.
	FeatureMountRoot
)

func (f Feature) has(want Feature) bool { return f&want != 0 }

// Options change how a tree is walked. The zero value is ready to use.
type Options struct {
	// Workers is how many goroutines may share a walk; they are started when there is work for them. 0 means the number
	// of processors, at least 4 and at most 16.
	Workers int
	// MaxOpen bounds the directories that are open because they will be needed again. 0 means 128.
	MaxOpen int
	// OneDevice leaves out what is on another device than the root though not on another mount: a subvolume of btrfs.
	OneDevice bool
	// Fresh asks the server of a network filesystem for attributes as stat(2) would; otherwise those that this machine
	// remembers may be told. It makes no difference on local filesystems, and doubles the system calls on others.
	Fresh bool
	// Mask is what a visitor wants to know (statx(2), STATX_GID and so on). Type, mode and inode are always told.
	Mask uint32
	// Without holds what is not to be used, for tests of the fall-backs.
	Without Feature
}

const (
	minWorkers     = 4
	maxWorkers     = 16
	defaultMaxOpen = 128
	// keyMask is what the walk itself wants to know.
	keyMask = unix.STATX_TYPE | unix.STATX_MODE | unix.STATX_INO
)

func (o Options) withDefaults() Options {
	if o.Workers <= 0 {
		o.Workers = min(max(runtime.GOMAXPROCS(0), minWorkers), maxWorkers)
	}
	if o.MaxOpen <= 0 {
		o.MaxOpen = defaultMaxOpen
	}
	o.Mask |= keyMask
	return o
}

// Tree is an open root. It is walked by one goroutine at a time.
type Tree struct {
	path    string
	options Options
	fd      int
	stat    unix.Statx_t
	mountID uint64 // of the root, where FeatureMountRoot is missing
	ask     bool   // whether attributes are asked for again, of the server

	foreign, vanished atomic.Int64
}

// Open opens the root at path, which is not followed when it is a symbolic link. The error is a *fs.PathError. It may
// wait for the filesystem.
func Open(path string, options Options) (*Tree, error) {
	t := &Tree{path: path, options: options.withDefaults()}
	var err error
	if t.fd, err = openPath(path); err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	if err := t.prepare(); err != nil {
		t.Close()
		return nil, err
	}
	return t, nil
}

func openPath(path string) (fd int, err error) {
	err = retry(func() error {
		fd, err = unix.Openat(unix.AT_FDCWD, path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		return err
	})
	return fd, err
}

// prepare finds out what the root is and what the kernel can do.
func (t *Tree) prepare() error {
	if errno := statx(t.fd, empty(), byFD, t.options.Mask, &t.stat); errno != 0 {
		return &fs.PathError{Op: "statx", Path: t.path, Err: errno}
	}
	if t.stat.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT == 0 {
		t.options.Without |= FeatureMountRoot
	}
	if !isDir(&t.stat) {
		return nil
	}
	if err := t.probe(); err != nil {
		return err
	}
	fd, errno := t.openChild(t.fd, dot())
	if errno != 0 {
		return &fs.PathError{Op: "open", Path: t.path, Err: errno}
	}
	closeFD(t.fd)
	t.fd = fd
	return nil
}

// probe finds out what is missing, once for each walk.
func (t *Tree) probe() (err error) {
	if !t.options.Without.has(FeatureOpenat2) && !hasOpenat2(t.fd) {
		t.options.Without |= FeatureOpenat2
	}
	if t.options.Without.has(FeatureMountRoot) {
		if t.mountID, err = descriptor.MountID(t.fd); err != nil {
			return err
		}
	}
	if !t.options.Fresh {
		return nil
	}
	if t.ask, err = isRemote(t.fd); err != nil {
		return &fs.PathError{Op: "fstatfs", Path: t.path, Err: err}
	}
	return nil
}

// Close closes the root.
func (t *Tree) Close() { closeFD(t.fd) }

// FD returns the descriptor of the root: open for reading when the root is a directory, without access (O_PATH) when not.
func (t *Tree) FD() int { return t.fd }

// Stat returns what statx said of the root when it was opened.
func (t *Tree) Stat() *unix.Statx_t { return &t.stat }

// Skipped counts what no visitor was told of.
type Skipped struct {
	// Foreign entries are roots of other mounts, or on another device where OneDevice asks so.
	Foreign int64
	// Vanished entries were gone before they could be looked at or opened.
	Vanished int64
}

// Skipped says how many entries beneath the root were left out so far. It may be called during a walk.
func (t *Tree) Skipped() Skipped {
	return Skipped{Foreign: t.foreign.Load(), Vanished: t.vanished.Load()}
}

func isDir(st *unix.Statx_t) bool { return st.Mode&unix.S_IFMT == unix.S_IFDIR }
