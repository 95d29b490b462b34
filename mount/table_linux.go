package mount

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const tablePath = "/proc/self/mountinfo"

// maxReads bounds the reading of a table that changes all the time, on kernels that do not keep it steady.
const maxReads = 10

// readTable reads the mount table. Since Linux 5.8 one reading cannot miss a mount that was there all the time; before,
// the table is read until two readings are equal.
func (m *Mounter) readTable(ctx context.Context) ([]MountPoint, error) {
	content, err := os.ReadFile(tablePath)
	if err != nil {
		return nil, fmt.Errorf("reading the mount table: %w", err)
	}
	if !m.tableIsSteady() {
		if content, err = readEqual(ctx, content); err != nil {
			return nil, err
		}
	}
	return parseTable(string(content))
}

// tableIsSteady reports whether this is Linux 5.8 or later, by a feature of the same version.
func (m *Mounter) tableIsSteady() bool {
	if m.without.has(FeatureStatxMountRoot) {
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
		content, err := os.ReadFile(tablePath)
		if err != nil {
			return nil, fmt.Errorf("reading the mount table: %w", err)
		}
		if bytes.Equal(content, last) {
			return content, nil
		}
		last = content
	}
	return nil, fmt.Errorf("the mount table changed during each of %d readings: %w", maxReads, ErrTransient)
}

// mountOf finds the mount that an open descriptor is in.
func (m *Mounter) mountOf(ctx context.Context, fd int) (MountPoint, error) {
	id, err := mountID(fd)
	if err != nil {
		return MountPoint{}, err
	}
	table, err := m.readTable(ctx)
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
	content, err := os.ReadFile("/proc/self/fdinfo/" + strconv.Itoa(fd))
	if err != nil {
		return 0, err
	}
	for line := bufio.NewScanner(bytes.NewReader(content)); line.Scan(); {
		if value, ok := strings.CutPrefix(line.Text(), "mnt_id:"); ok {
			return strconv.ParseUint(strings.TrimSpace(value), 10, 64)
		}
	}
	return 0, fmt.Errorf("descriptor %d has no mount id: %w", fd, ErrUnsupported)
}
