package mount

import (
	"context"
	"errors"
	"fmt"
	"path"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/abandonable"
)

// errMissing: a directory on the path has no such name, so nothing is mounted at the path. No filesystem that is mounted there
// was queried. A filesystem's claim that the root of its own mount is missing does not match it (see entry.mounted).
var errMissing = errors.New("there is no such name")

// resolveCached is RESOLVE_CACHED of openat2(2), Linux 5.12. The walk fails with EAGAIN at a name that is not in the kernel's
// cache, or that a server must confirm.
const resolveCached = 0x20

// scratch holds the buffers of one lookup. They are reused: without that, a lookup takes twice as long.
type scratch struct {
	how  unix.OpenHow
	stat unix.Statx_t
	path [unix.PathMax]byte

	status [statmountBuffer]byte
}

// newScratch returns buffers from the pool, or new ones.
func (r *reader) newScratch() *scratch {
	if l, ok := r.scratches.Get().(*scratch); ok {
		return l
	}
	return &scratch{}
}

var _ [0]struct{} = [unsafe.Sizeof(unix.OpenHow{}) - unix.SizeofOpenHow]struct{}{}

// statPathCached is statPath by path, in the goroutine of the caller. It never waits for a filesystem. Its error is errWouldWait
// if it would have to, or if the kernel cannot answer without it. Its error is errNoSyscall if the kernel cannot report whether
// name is the root of a mount. A link at name or above it is an error that matches unix.ELOOP.
func (r *reader) statPathCached(name string) (pathStat, error) {
	if r.without.has(FeatureStatxMountRoot) {
		return pathStat{}, errNoSyscall
	}
	if r.without.has(FeatureOpenat2) || len(name) >= unix.PathMax {
		return pathStat{}, errWouldWait
	}
	look := r.newScratch()
	defer r.scratches.Put(look)
	fd, err := look.open(name)
	if isAbsent(err) {
		return pathStat{}, fmt.Errorf("%w: %w", errMissing, err)
	}
	if err != nil {
		return pathStat{}, err
	}
	g, err := look.statPath(fd)
	closeFD(fd) // an open descriptor makes the mount busy
	return r.onlyKnown(g), err
}

// open opens name as O_PATH, as openPath does, unless it would have to wait. It does not use RawSyscall, and neither do statx
// and close: a thread that waits in one delays the garbage collector. The three calls are quick, but each may wait. Open waits
// for a larger table of descriptors, statx for a filesystem that ignores DONT_SYNC, close for the end of a detached mount.
func (l *scratch) open(name string) (int, error) {
	l.path[copy(l.path[:], name)] = 0
	l.how = unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | resolveCached,
	}
	here := unix.AT_FDCWD
	fd, _, errno := unix.Syscall6(unix.SYS_OPENAT2, uintptr(here), uintptr(unsafe.Pointer(&l.path)),
		uintptr(unsafe.Pointer(&l.how)), unix.SizeofOpenHow, 0, 0)
	switch errno {
	case 0:
		return int(fd), nil
	case unix.EAGAIN, unix.EINTR, unix.EINVAL, unix.ENOSYS, unix.EPERM:
		return -1, errWouldWait
	default:
		return -1, errno
	}
}

// statPath is the function statPath for an open descriptor.
func (l *scratch) statPath(fd int) (pathStat, error) {
	l.path[0] = 0
	_, _, errno := unix.Syscall6(unix.SYS_STATX, uintptr(fd), uintptr(unsafe.Pointer(&l.path)), statFlags|unix.AT_EMPTY_PATH,
		unix.STATX_MNT_ID_UNIQUE, uintptr(unsafe.Pointer(&l.stat)), 0)
	if errno != 0 {
		return pathStat{}, missing(errno)
	}
	return pathStatOf(&l.stat)
}

// isMountPointCached is IsMountPoint in the goroutine of the caller. Its error is errWouldWait if a filesystem on the path must
// be queried.
func (r *reader) isMountPointCached(name string) (bool, error) {
	g, err := r.statPathCached(name)
	switch {
	case err == nil:
		return g.isRoot, nil
	case errors.Is(err, errMissing):
		return false, fmt.Errorf("is %q a mount point: %w", name, err)
	}
	return false, errWouldWait
}

// onlyKnown clears the fields of g that belong to features which this reader does without.
func (r *reader) onlyKnown(g pathStat) pathStat {
	if r.without.has(FeatureStatmount) {
		g.uniqueID = 0
	}
	return g
}

// lookupCached is Lookup in the goroutine of the caller. Like statPathCached it returns errWouldWait instead of waiting. Its error
// is errNoSyscall if only the mount table has the answer.
func (r *reader) lookupCached(name string) (MountPoint, error) {
	for range maxTries {
		g, err := r.statPathCached(name)
		if err != nil {
			return MountPoint{}, err
		}
		found, err := r.factsOf(g, name)
		if g.isRoot && errors.Is(err, ErrNotMounted) {
			continue // it was unmounted in between; there may be another below it
		}
		return found, err
	}
	return MountPoint{}, errNoSyscall
}

// factsOf returns the facts of the mount at name that g describes.
func (r *reader) factsOf(g pathStat, name string) (MountPoint, error) {
	switch {
	case !g.isRoot:
		return MountPoint{}, ErrNotMounted
	case g.uniqueID == 0:
		return MountPoint{}, errNoSyscall
	}
	return r.factsAt(g.uniqueID, name)
}

// lookup is Lookup. If the path cannot be read, it searches the mount table: a bind mount can outlive its source, and the
// filesystem of a dead server can fail every call.
func (m *Mounter) lookup(ctx context.Context, name string) (MountPoint, error) {
	found, err := m.reader.lookupCached(name)
	if errors.Is(err, errWouldWait) && !m.reader.without.has(FeatureStatxMountRoot) {
		found, err = abandonable.Value(ctx, m.calls, abandonable.Key{Look: true, Path: name}, func(ctx context.Context) (MountPoint, error) {
			return m.reader.lookupBlocking(ctx, name)
		})
		var lost *AbandonedError
		if errors.As(err, &lost) {
			return MountPoint{}, err
		}
	}
	if err == nil {
		return found, nil
	}
	if !errors.Is(err, ErrNotMounted) && !errors.Is(err, errMissing) {
		return m.reader.lookupInTable(ctx, name)
	}
	return MountPoint{}, fmt.Errorf("looking up %q: %w", name, ErrNotMounted)
}

// lookupBlocking is lookupCached, but may wait for filesystems.
func (r *reader) lookupBlocking(ctx context.Context, name string) (MountPoint, error) {
	if name == "/" {
		return MountPoint{}, errNoSyscall
	}
	p, err := r.openParent(ctx, name)
	if isAbsent(err) && r.isDirMissing(ctx, path.Dir(name)) {
		return MountPoint{}, errMissing
	}
	if err != nil {
		return MountPoint{}, err
	}
	defer p.close()
	for range maxTries {
		if err := abandonable.Begin(ctx, "statx"); err != nil {
			return MountPoint{}, err
		}
		g, err := statPath(p.parent, p.base)
		if isAbsent(err) && p.isMissing() {
			return MountPoint{}, errMissing
		}
		if err != nil {
			return MountPoint{}, err
		}
		found, err := r.factsOf(r.onlyKnown(g), name)
		if g.isRoot && errors.Is(err, ErrNotMounted) {
			continue
		}
		return found, err
	}
	return MountPoint{}, errNoSyscall
}

// lookupInTable reads the mount table and returns the mount at name.
func (r *reader) lookupInTable(ctx context.Context, name string) (MountPoint, error) {
	if err := ctx.Err(); err != nil {
		return MountPoint{}, fmt.Errorf("%q was not looked up: %w: %w", name, ErrTransient, err)
	}
	table, err := r.readTable(ctx)
	if err != nil {
		return MountPoint{}, err
	}
	found, is := lookup(table, name)
	if !is {
		return MountPoint{}, fmt.Errorf("looking up %q: %w", name, ErrNotMounted)
	}
	return found, nil
}

// lookupID returns the facts of the mount with the unique id. The error matches ErrNotMounted if there is no such mount, and
// ErrUnsupported if this kernel cannot return all facts. It does not wait for a filesystem.
func (r *reader) lookupID(id uint64) (MountPoint, error) {
	found, err := r.facts(id)
	if errors.Is(err, errNoSyscall) {
		return MountPoint{}, fmt.Errorf("statmount: %w: %w", ErrUnsupported, err)
	}
	return found, err
}

// lookupIDInTable is LookupID by the mount table, for kernels on which lookupID is unsupported.
func (r *reader) lookupIDInTable(ctx context.Context, id uint64) (MountPoint, error) {
	table, err := r.readTable(ctx)
	if err != nil {
		return MountPoint{}, err
	}
	hasIDs := false
	for _, mp := range table {
		if mp.UniqueID == id && id != 0 {
			return mp, nil
		}
		hasIDs = hasIDs || mp.UniqueID != 0
	}
	if !hasIDs {
		return MountPoint{}, fmt.Errorf("mount %d: this kernel has no unique ids: %w", id, ErrUnsupported)
	}
	return MountPoint{}, fmt.Errorf("mount %d: %w", id, ErrNotMounted)
}
