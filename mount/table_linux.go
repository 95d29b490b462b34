package mount

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/descriptor"
)

const tablePath = "/proc/self/mountinfo"

// maxReads limits the readings of a table that keeps changing, on kernels before Linux 5.8.
const maxReads = 10

// readTable reads the mount table as it is now.
func (r *reader) readTable(ctx context.Context) ([]MountPoint, error) {
	fd, err := openTable()
	if err != nil {
		return nil, err
	}
	defer closeFD(fd)
	return r.readTableFrom(ctx, fd, r.uniqueIDs(0))
}

// openTable opens the mount table. It does not use package os: the poller of os would poll the file and consume the changes that
// poll(2) reports.
func openTable() (int, error) {
	fd, err := retryOpen(func() (int, error) { return unix.Open(tablePath, unix.O_RDONLY|unix.O_CLOEXEC, 0) })
	if err != nil {
		return -1, fmt.Errorf("opening the mount table: %w", err)
	}
	return fd, nil
}

// readTableFrom reads the mount table from its open file. before holds the unique ids of all mounts, if the kernel has them.
// Since Linux 5.8, one reading cannot miss a mount that stays. On an older kernel the table is read until two readings are equal.
func (r *reader) readTableFrom(ctx context.Context, fd int, before []uint64) ([]MountPoint, error) {
	content, err := readAll(fd, len(before)*bytesPerMount)
	if err != nil {
		return nil, err
	}
	if !r.tableIsSteady() {
		if content, err = readEqual(ctx, content); err != nil {
			return nil, err
		}
	}
	table, err := parseTable(unsafe.String(unsafe.SliceData(content), len(content))) // no code writes to it any more
	if err != nil {
		return nil, err
	}
	if before != nil {
		r.setUniqueIDs(table, before, r.uniqueIDs(len(before)))
	}
	return table, nil
}

// bytesPerMount is more than most lines take.
const bytesPerMount = 256

// readAll reads a file of /proc from its beginning. room is a guess of its size in bytes.
func readAll(fd, room int) ([]byte, error) {
	content := make([]byte, 0, max(room, 32<<10))
	for {
		if len(content) == cap(content) {
			content = slices.Grow(content, cap(content)) // doubles it
		}
		var n int
		err := retry(func() (err error) {
			n, err = unix.Pread(fd, content[len(content):cap(content)], int64(len(content)))
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("reading the mount table: %w", err)
		}
		if n == 0 {
			return content, nil
		}
		content = content[:len(content)+n]
	}
}

// uniqueIDs returns the unique ids of all mounts in the order of the table; nil if the kernel has none.
func (r *reader) uniqueIDs(room int) []uint64 {
	if r.without.has(FeatureStatmount) {
		return nil
	}
	ids, err := listMounts(room)
	if err != nil {
		return nil
	}
	return ids
}

// setUniqueIDs sets the unique ids of the mounts in the table. before and after are the ids of all mounts, listed before and after the
// table was read.
func (r *reader) setUniqueIDs(table []MountPoint, before, after []uint64) {
	read := reading{table: table, before: before, after: after}
	read.setUniqueIDs(oldID, r.facts)
}

// oldID returns the reused id of the mount with the unique id; false if the mount is gone.
func oldID(id uint64) (uint64, bool) {
	var status mountStatus
	err := statmountBasic(id, statmountMntBasic, &status)
	return uint64(status.mntIDOld), err == nil
}

// reading is a table as it was read, without unique ids, and the unique ids of all mounts before and after that, ascending.
type reading struct {
	table         []MountPoint
	before, after []uint64
}

// setUniqueIDs is reader.setUniqueIDs. All three lists are in the order of the unique ids, and a mount that stays is in each. So
// if before and after are equal, and the table is as long, it holds exactly these mounts. Otherwise the mounts in both lists are
// found in the table by their other ids, of which no two mounts have the same one at a time. The UniqueID of a mount that came or
// went meanwhile stays 0, unless nameNew finds it.
func (r *reading) setUniqueIDs(oldID func(uint64) (uint64, bool), facts func(uint64) (MountPoint, error)) {
	if len(r.table) == len(r.before) && slices.Equal(r.before, r.after) {
		for i := range r.table {
			r.table[i].UniqueID = r.before[i]
		}
		return
	}
	next := 0
	for _, id := range inBoth(r.before, r.after) {
		old, there := oldID(id)
		if !there {
			continue // it has gone since
		}
		hasID := func(m MountPoint) bool { return m.ID == old }
		if at := slices.IndexFunc(r.table[next:], hasID); at >= 0 {
			r.table[next+at].UniqueID = id
			next += at + 1
		}
	}
	r.nameNew(facts)
}

// inBoth returns what two ascending lists have in common.
func inBoth(a, b []uint64) (both []uint64) {
	for len(a) > 0 && len(b) > 0 {
		switch {
		case a[0] < b[0]:
			a = a[1:]
		case a[0] > b[0]:
			b = b[1:]
		default:
			both = append(both, a[0])
			a, b = a[1:], b[1:]
		}
	}
	return both
}

// nameNew replaces, with facts that include the unique id, the mounts of the table that came while it was read. A mount that went
// meanwhile may have had the same other id; it is earlier in the table.
func (r *reading) nameNew(facts func(uint64) (MountPoint, error)) {
	for _, id := range r.after {
		if _, old := slices.BinarySearch(r.before, id); old {
			continue
		}
		found, err := facts(id)
		if err != nil {
			continue
		}
		for i := range slices.Backward(r.table) {
			if r.table[i].UniqueID == 0 && r.table[i].ID == found.ID {
				r.table[i] = found
				break
			}
		}
	}
}

// tableIsSteady reports whether this is Linux 5.8 or later, by a feature of the same version.
func (r *reader) tableIsSteady() bool {
	if r.without.has(FeatureStatxMountRoot) {
		return false
	}
	_, err := mountRoot(unix.AT_FDCWD, "/")
	return err == nil
}

func readEqual(ctx context.Context, last []byte) ([]byte, error) {
	for range maxReads {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		content, err := readAnew(len(last))
		if err != nil {
			return nil, err
		}
		if bytes.Equal(content, last) {
			return content, nil
		}
		last = content
	}
	return nil, fmt.Errorf("the mount table changed during each of %d readings: %w", maxReads, ErrTransient)
}

func readAnew(room int) ([]byte, error) {
	fd, err := openTable()
	if err != nil {
		return nil, err
	}
	defer closeFD(fd)
	return readAll(fd, room)
}

// mountOf finds the mount that an open descriptor is in.
func (r *reader) mountOf(ctx context.Context, fd int) (MountPoint, error) {
	id, err := mountID(fd)
	if err != nil {
		return MountPoint{}, err
	}
	table, err := r.readTable(ctx)
	if err != nil {
		return MountPoint{}, err
	}
	for _, mp := range table {
		if mp.ID == id {
			return mp, nil
		}
	}
	return MountPoint{}, fmt.Errorf("mount %d is not in the table: %w", id, ErrNotMounted)
}

// mountID reads the id of the mount that an open descriptor is in.
func mountID(fd int) (uint64, error) {
	id, err := descriptor.MountID(fd)
	if errors.Is(err, errors.ErrUnsupported) {
		err = fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	return id, err
}
