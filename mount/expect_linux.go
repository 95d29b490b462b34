package mount

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// errCovered says that something was mounted on the mount that is to be taken off, so that the place must be looked at
// again.
var errCovered = errors.New("something was mounted on top")

// lookFor looks at the place, and refuses to go on when what is uppermost there is not the mount that the caller means.
func (p *place) lookFor(ctx context.Context, s *steps, expect Identity) (top seen, err error) {
	for range maxTries {
		if top, err = p.look(ctx, s); err != nil || !top.mounted {
			return top, err
		}
		if err = p.check(ctx, s, top, expect); !errors.Is(err, ErrNotMounted) {
			return top, err
		}
		// It has gone since it was seen: what is there now?
	}
	return top, err
}

// check returns an error that matches ErrForeign when what was seen is not what is expected.
func (p *place) check(ctx context.Context, s *steps, top seen, expect Identity) error {
	if expect == (Identity{}) || top.id != 0 && top.id == expect.UniqueID {
		return nil
	}
	found, err := p.facts(ctx, s, top)
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
func (p *place) facts(ctx context.Context, s *steps, top seen) (MountPoint, error) {
	if top.id != 0 {
		found, err := p.mounter.lookupID(top.id)
		if !errors.Is(err, ErrUnsupported) {
			return found, err
		}
	}
	if err := s.begin(ctx, "openat2"); err != nil {
		return MountPoint{}, err
	}
	fd, err := p.open()
	if err != nil {
		return p.factsInTable(ctx, err)
	}
	defer closeFD(fd)
	found, err := p.mounter.mountOf(ctx, fd)
	found.UniqueID = top.id
	return found, err
}

// factsInTable is facts for a place that cannot be opened because of err.
func (p *place) factsInTable(ctx context.Context, err error) (MountPoint, error) {
	table, tableErr := p.mounter.readTable(ctx)
	if tableErr != nil {
		return MountPoint{}, errors.Join(err, tableErr)
	}
	found, is := lookup(table, p.path)
	if !is {
		return MountPoint{}, err
	}
	return found, nil
}

// umountMeant is a plain unmount that cannot hit a mount which somebody puts on top at the last moment. With MNT_EXPIRE
// the kernel takes a mount off only at the second call, when nobody has used it since the first, which has marked it:
//
//  1. the first call marks whatever is uppermost, and says EAGAIN;
//  2. nothing is mounted on the mount that is meant, so that it was the uppermost when it was marked, or is not marked;
//  3. the second call takes off what is marked. What came on top in between is not, and is refused with EAGAIN.
//
// Somebody who walks over the mount removes the mark; then it is made again.
func (t *takedown) umountMeant(ctx context.Context, s *steps) error {
	for range maxTries {
		err := t.umount(ctx, s, unix.MNT_EXPIRE)
		if !errors.Is(err, unix.EAGAIN) {
			return err
		}
		if err := t.checkUncovered(ctx, s); err != nil {
			return err
		}
	}
	return fmt.Errorf("umount2: somebody keeps using it: %w", unix.EBUSY)
}

// checkUncovered looks for a mount on the one that is meant, in a way that does not use the mount.
func (t *takedown) checkUncovered(ctx context.Context, s *steps) error {
	if err := s.begin(ctx, "listmount"); err != nil {
		return err
	}
	covered, err := t.hasChild(ctx)
	if err != nil {
		return err
	}
	if !covered {
		return nil
	}
	if _, err := t.lookFor(ctx, s, t.options.Expect); err != nil {
		return err
	}
	return fmt.Errorf("%w: %w", errCovered, unix.EBUSY)
}

// hasChild reports whether something is mounted on the mount, at its root or below. A mount that has gone has no child.
func (t *takedown) hasChild(ctx context.Context) (bool, error) {
	if t.top.id != 0 {
		n, err := countChildren(t.top.id)
		if err == nil || errors.Is(err, unix.ENOENT) {
			return n > 0, nil
		}
	}
	table, err := t.mounter.readTable(ctx)
	if err != nil {
		return false, err
	}
	at, is := lookup(table, t.path)
	covered := slices.ContainsFunc(table, func(mp MountPoint) bool { return mp.ParentID == at.ID })
	return is && (covered || !t.options.Expect.Is(at)), nil
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
