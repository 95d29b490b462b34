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

// errCovered says that something was mounted on the mount that is to be taken off, so that the place must be looked at
// again.
var errCovered = errors.New("something was mounted on top")

// lookFor looks at the place, and refuses to go on when what is uppermost there is not the mount that the caller means.
func (p *place) lookFor(ctx context.Context, expect Identity) (top seen, err error) {
	for range maxTries {
		if top, err = p.look(ctx); err != nil || !top.mounted {
			return top, err
		}
		if err = p.check(ctx, top, expect); !errors.Is(err, ErrNotMounted) {
			return top, err
		}
		// It has gone since it was seen: what is there now?
	}
	return top, err
}

// check returns an error that matches ErrForeign when what was seen is not what is expected.
func (p *place) check(ctx context.Context, top seen, expect Identity) error {
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

// foreign is the error about a mount that is not the one that was meant.
func foreign(found MountPoint, expect Identity) error {
	return fmt.Errorf("found %s where %s was expected; it was left alone, look who has mounted it: %w",
		found.Identity().describe(), expect.describe(), ErrForeign)
}

// facts describes the mount that was seen at the place.
func (p *place) facts(ctx context.Context, top seen) (MountPoint, error) {
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

// factsInTable is facts for a place that cannot be opened because of err.
func (p *place) factsInTable(ctx context.Context, err error) (MountPoint, error) {
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

// umountMeant is a plain unmount that cannot hit a mount which another process puts on top at the last moment. With MNT_EXPIRE
// the kernel marks a mount at the first call, and takes it off at the second call if no process has used it in between:
//
//  1. the first call marks whatever is uppermost, and says EAGAIN;
//  2. the mount that is meant is at the place, and nothing is mounted on it;
//  3. the second call takes off what is marked. What has come in between is not, and is refused with EAGAIN.
//
// So another mount is taken off only if it is the uppermost at step 3 and was marked before. If we have marked it, it has
// left the place again, by step 2: one that was unmounted never comes back, and who moves one uses it, which removes the
// mark (and while it is in use, the answer is EBUSY). What remains is a mount that another process puts there between the steps
// and has marked itself, to be taken off when no process uses it, and that no process uses: [UnmountOptions].Expect says so.
//
// A process that walks over the mount removes the mark; then it is made again, a bounded number of times. A process that holds it
// open makes the answer EBUSY, as does a busy copy of it in a peer. Step 2 must not use the mount: statx would.
func (t *takedown) umountMeant(ctx context.Context) error {
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

// checkOnTop makes sure that the mount that is meant is the uppermost at its place, in a way that does not use it.
func (t *takedown) checkOnTop(ctx context.Context) error {
	if err := abandonable.Begin(ctx, "statmount"); err != nil {
		return err
	}
	isOnTop, err := t.isOnTop(ctx)
	if err != nil || isOnTop {
		return err
	}
	if _, err := t.lookFor(ctx, t.options.Expect); err != nil {
		return err
	}
	return fmt.Errorf("%w: %w", errCovered, unix.EBUSY)
}

// isOnTop reports whether the mount that is meant is where it was seen, and nothing is mounted on it, at its root or below.
func (t *takedown) isOnTop(ctx context.Context) (bool, error) {
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
func (t *takedown) isOnTopByID() (bool, error) {
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
