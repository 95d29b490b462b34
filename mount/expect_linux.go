package mount

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/abandonable"
)

// errCovered: another mount covers the one to unmount. The caller must look up the path again.
var errCovered = errors.New("something was mounted on top")

// findExpected returns the uppermost mount. The error matches ErrForeign if that is not the expected one.
func (p *entry) findExpected(ctx context.Context, expect Identity) (top topMount, err error) {
	for range maxTries {
		if top, err = p.findTop(ctx); err != nil || !top.mounted {
			return top, err
		}
		if err = p.check(ctx, top, expect); !errors.Is(err, ErrNotMounted) {
			return top, err
		}
		// It was unmounted since findTop: look again.
	}
	return top, err
}

// check returns an error that matches ErrForeign if top is not the expected mount.
func (p *entry) check(ctx context.Context, top topMount, expect Identity) error {
	if expect == (Identity{}) || top.id != 0 && top.id == expect.UniqueID {
		return nil
	}
	found, err := p.facts(ctx, top)
	if err != nil {
		return fmt.Errorf("what is mounted there cannot be told: %w", err)
	}
	if expect.Is(found) {
		return nil
	}
	return foreign(found, expect)
}

// foreign is the error about a mount that is not the expected one.
func foreign(found MountPoint, expect Identity) error {
	return fmt.Errorf("found %s where %s was expected; it was left alone, look who has mounted it: %w",
		found.Identity().describe(), expect.describe(), ErrForeign)
}

// facts returns the facts of top.
func (p *entry) facts(ctx context.Context, top topMount) (MountPoint, error) {
	if top.id != 0 {
		found, err := p.reader.lookupID(top.id)
		if !errors.Is(err, ErrUnsupported) {
			return found, err
		}
	}
	if err := abandonable.Begin(ctx, "openat2"); err != nil {
		return MountPoint{}, err
	}
	fd, err := p.open()
	if err != nil {
		return p.factsInTable(ctx, err)
	}
	defer closeFD(fd)
	found, err := p.reader.mountOf(ctx, fd)
	found.UniqueID = top.id
	return found, err
}

// factsInTable is facts for an entry that cannot be opened because of err.
func (p *entry) factsInTable(ctx context.Context, err error) (MountPoint, error) {
	table, tableErr := p.reader.readTable(ctx)
	if tableErr != nil {
		return MountPoint{}, errors.Join(err, tableErr)
	}
	found, is := lookup(table, p.path)
	if !is {
		return MountPoint{}, err
	}
	return found, nil
}

// umountExpected is a plain unmount that cannot hit a mount which another process puts on top at the last moment. With MNT_EXPIRE
// the kernel marks a mount at the first call, and unmounts it at the second call if no process has used it in between:
//
//  1. the first call marks the uppermost mount and returns EAGAIN;
//  2. checkOnTop finds the expected mount at the path, with nothing mounted on it;
//  3. the second call unmounts the marked mount. A mount that came in between has no mark: the call returns EAGAIN.
//
// So a foreign mount is unmounted only if it is uppermost at step 3 and has a mark. If step 1 marked it, step 2 has shown that it
// has left the path. An unmounted one never comes back. A move uses the mount and removes the mark, and a mount in use returns
// EBUSY. One case remains: another process mounts between the steps, has marked that mount itself with MNT_EXPIRE, and no
// process uses it. [UnmountOptions].Expect documents that case.
//
// A process that walks over the mount removes the mark. Then umountExpected sets it again, a bounded number of times. An open file
// on the mount makes the call return EBUSY, as does a busy copy of it in a peer. Step 2 must not use the mount: statx would.
func (t *topUnmount) umountExpected(ctx context.Context) error {
	for range maxTries {
		err := t.umount(ctx, unix.MNT_EXPIRE)
		if !errors.Is(err, unix.EAGAIN) {
			return err
		}
		if err := t.checkOnTop(ctx); err != nil {
			return err
		}
	}
	return fmt.Errorf("umount2: another process keeps using it: %w", unix.EBUSY)
}

// checkOnTop returns an error unless the expected mount is the uppermost at its path. It does not use the mount.
func (t *topUnmount) checkOnTop(ctx context.Context) error {
	if err := abandonable.Begin(ctx, "statmount"); err != nil {
		return err
	}
	isOnTop, err := t.isOnTop(ctx)
	if err != nil || isOnTop {
		return err
	}
	if _, err := t.findExpected(ctx, t.options.Expect); err != nil {
		return err
	}
	return fmt.Errorf("%w: %w", errCovered, unix.EBUSY)
}

// isOnTop reports whether the expected mount is still at its path, with nothing mounted on it, at its root or below.
func (t *topUnmount) isOnTop(ctx context.Context) (bool, error) {
	if t.top.id != 0 {
		is, err := t.isOnTopByID()
		if !errors.Is(err, errNoSyscall) {
			return is, err
		}
	}
	table, err := t.reader.readTable(ctx)
	if err != nil {
		return false, err
	}
	at, is := lookup(table, t.path)
	covered := slices.ContainsFunc(table, func(mp MountPoint) bool { return mp.ParentID == at.ID })
	return is && !covered && t.options.Expect.Is(at), nil
}

// isOnTopByID is isOnTop by unique id.
func (t *topUnmount) isOnTopByID() (bool, error) {
	above, err := os.Readlink(fdPath(t.parent)) // which tells when a directory above was renamed
	if err != nil {
		return false, err
	}
	var buffer [statmountBuffer]byte
	status, text, err := statmount(t.top.id, statmountMntPoint, buffer[:])
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, missing(err)
	}
	if cString(string(text), status.mntPoint) != path.Join(above, t.base) {
		return false, nil // it was moved
	}
	n, err := countChildren(t.top.id)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, missing(err)
	}
	return n == 0, nil
}

// mountIDRequest is struct mnt_id_req of listmount(2).
type mountIDRequest struct {
	size, spare uint32
	id, param   uint64
}

// countChildren asks whether there are mounts on the one with the unique id (listmount(2), since Linux 6.8).
func countChildren(id uint64) (int, error) {
	request := mountIDRequest{id: id}
	request.size = uint32(unsafe.Sizeof(request))
	var first [1]uint64
	n, _, errno := unix.Syscall6(unix.SYS_LISTMOUNT,
		uintptr(unsafe.Pointer(&request)), uintptr(unsafe.Pointer(&first[0])), uintptr(len(first)), 0, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}
