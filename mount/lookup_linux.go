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

// errMissing says that a directory on the way has no such name, which asks no filesystem that is mounted there: nothing can be
// mounted at the path. That the root of a mount itself is said to be missing does not match it (see place.mounted).
var errMissing = errors.New("there is no such name")

// resolveCached is RESOLVE_CACHED of openat2(2), Linux 5.12: the walk fails with EAGAIN where the kernel does not know a
// name, or would have to ask a server whether it is still good.
const resolveCached = 0x20

// cachedLook is the memory of one look, which is used again: without it, a look would take twice as long.
type cachedLook struct {
	how  unix.OpenHow
	stat unix.Statx_t
	path [unix.PathMax]byte

	facts [statmountBuffer]byte
}

// look takes the memory of a look that has ended, or makes some.
func (r *reader) look() *cachedLook {
	if l, ok := r.looks.Get().(*cachedLook); ok {
		return l
	}
	return &cachedLook{}
}

var _ [0]struct{} = [unsafe.Sizeof(unix.OpenHow{}) - unix.SizeofOpenHow]struct{}{}

// glanceCached looks at name in the goroutine of the caller. It never waits for a filesystem: the error is errWouldWait
// when that would be needed, or when the kernel cannot tell, and errNoSyscall when it cannot say whether name is the root
// of a mount. A link at name or above it is an error that matches unix.ELOOP.
func (r *reader) glanceCached(name string) (glance, error) {
	if r.without.has(FeatureStatxMountRoot) {
		return glance{}, errNoSyscall
	}
	if r.without.has(FeatureOpenat2) || len(name) >= unix.PathMax {
		return glance{}, errWouldWait
	}
	look := r.look()
	defer r.looks.Put(look)
	fd, err := look.open(name)
	if isAbsent(err) {
		return glance{}, fmt.Errorf("%w: %w", errMissing, err)
	}
	if err != nil {
		return glance{}, err
	}
	g, err := look.glance(fd)
	closeFD(fd) // which makes the mount busy while it is open
	return r.blind(g), err
}

// open opens name as O_PATH, as openPath does, unless it would have to wait. This is no RawSyscall, and neither is statx nor
// close: a thread that waits in one holds up the garbage collector. The three are quick, but each may wait: open for a
// larger table of descriptors, statx for a filesystem that ignores DONT_SYNC, close for the end of a mount that a process
// has detached meanwhile.
func (l *cachedLook) open(name string) (int, error) {
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

// glance is glanceAt of what is open.
func (l *cachedLook) glance(fd int) (glance, error) {
	l.path[0] = 0
	_, _, errno := unix.Syscall6(unix.SYS_STATX, uintptr(fd), uintptr(unsafe.Pointer(&l.path)), glanceFlags|unix.AT_EMPTY_PATH,
		unix.STATX_MNT_ID_UNIQUE, uintptr(unsafe.Pointer(&l.stat)), 0)
	if errno != 0 {
		return glance{}, missing(errno)
	}
	return seenBy(&l.stat)
}

// isMountPointNow is IsMountPoint in the goroutine of the caller. The error is errWouldWait when the filesystems on the
// way have to be asked.
func (r *reader) isMountPointNow(name string) (bool, error) {
	g, err := r.glanceCached(name)
	switch {
	case err == nil:
		return g.isRoot, nil
	case errors.Is(err, errMissing):
		return false, fmt.Errorf("is %q a mount point: %w", name, err)
	}
	return false, errWouldWait
}

// blind takes from g what this Mounter is not to know.
func (r *reader) blind(g glance) glance {
	if r.without.has(FeatureStatmount) {
		g.uniqueID = 0
	}
	return g
}

// lookupNow is Lookup in the goroutine of the caller; like glanceCached it returns errWouldWait in place of waiting, and
// errNoSyscall when the mount table has to be asked.
func (r *reader) lookupNow(name string) (MountPoint, error) {
	for range maxTries {
		g, err := r.glanceCached(name)
		if err != nil {
			return MountPoint{}, err
		}
		found, err := r.factsOf(g, name)
		if g.isRoot && errors.Is(err, ErrNotMounted) {
			continue // it has gone in between; there may be another below it
		}
		return found, err
	}
	return MountPoint{}, errNoSyscall
}

// factsOf returns the facts of the mount that was seen at name.
func (r *reader) factsOf(g glance, name string) (MountPoint, error) {
	switch {
	case !g.isRoot:
		return MountPoint{}, ErrNotMounted
	case g.uniqueID == 0:
		return MountPoint{}, errNoSyscall
	}
	return r.factsAt(g.uniqueID, name)
}

// lookup is Lookup. What cannot be seen at the path is looked for in the mount table: a mount can outlive what it is a
// bind of, and the filesystem of a server that has gone can refuse every look.
func (m *Mounter) lookup(ctx context.Context, name string) (MountPoint, error) {
	found, err := m.reader.lookupNow(name)
	if errors.Is(err, errWouldWait) && !m.reader.without.has(FeatureStatxMountRoot) {
		found, err = abandonable.Value(ctx, m.calls, abandonable.Key{Look: true, Path: name}, func(ctx context.Context) (MountPoint, error) {
			return m.reader.lookupSlowly(ctx, name)
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

// lookupSlowly is lookupNow that may wait.
func (r *reader) lookupSlowly(ctx context.Context, name string) (MountPoint, error) {
	if name == "/" {
		return MountPoint{}, errNoSyscall
	}
	p, err := r.openPlace(ctx, name)
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
		g, err := glanceAt(p.parent, p.base)
		if isAbsent(err) && p.isMissing() {
			return MountPoint{}, errMissing
		}
		if err != nil {
			return MountPoint{}, err
		}
		found, err := r.factsOf(r.blind(g), name)
		if g.isRoot && errors.Is(err, ErrNotMounted) {
			continue
		}
		return found, err
	}
	return MountPoint{}, errNoSyscall
}

// lookupInTable looks for the mount at name in the mount table, as it is now.
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

// lookupID asks the kernel for the facts of the mount with the unique id. The error matches ErrNotMounted when there is no
// such mount, and ErrUnsupported when this kernel cannot give all of the facts. It does not wait for a filesystem.
func (r *reader) lookupID(id uint64) (MountPoint, error) {
	found, err := r.facts(id)
	if errors.Is(err, errNoSyscall) {
		return MountPoint{}, fmt.Errorf("statmount: %w: %w", ErrUnsupported, err)
	}
	return found, err
}

// lookupIDInTable is LookupID where the kernel cannot say it by itself.
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
