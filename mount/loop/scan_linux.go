package loop

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/lostcall"
)

// catchUp makes the table complete up to the change with number seq, which was made before; 0 asks for a look in any
// case. It asks the devices that have changed since they were last asked, and only reads of the others that they have not.
func (m *Manager) catchUp(ctx context.Context, seq uint64) error {
	if err := lostcall.Begin(ctx, "scan of loop devices"); err != nil {
		return err
	}
	end, err := m.table.takeScan(ctx)
	if err != nil {
		return fmt.Errorf("looking at loop devices: %w", err)
	}
	defer end()
	if m.table.complete(seq) {
		return nil
	}
	before := m.table.snapshot()
	present, err := loopNumbers()
	if err != nil {
		return err
	}
	for _, number := range present {
		if err := m.refresh(ctx, number); err != nil {
			return fmt.Errorf("looking at loop devices: %w", err)
		}
	}
	m.table.scanned(seq, before, present)
	return nil
}

// loopNumbers lists the devices that sysfs shows, free ones too.
func loopNumbers() ([]int, error) {
	dir, err := os.Open(sysBlock)
	if err != nil {
		return nil, fmt.Errorf("cannot list loop devices: mount sysfs at /sys: %w", err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("cannot list loop devices: %w", err)
	}
	var numbers []int
	for _, name := range names {
		if number, ok := loopNumber(name); ok {
			numbers = append(numbers, number)
		}
	}
	return numbers, nil
}

// refresh brings one row up to date. A device is asked when its number has changed; the number is read first, so that
// what changes meanwhile is asked again next time.
func (m *Manager) refresh(ctx context.Context, number int) error {
	seq, err := sysSeq(number)
	if err != nil && !isMissing(err) {
		return err
	}
	known, ok := m.table.get(number)
	if ok && seq != 0 && known.seq == seq && known.state != rowSilent {
		return nil
	}
	if seq == 0 && !hasFile(number) {
		m.table.put(number, row{})
		return nil
	}
	device, attached, err := m.askWithin(ctx, number, askLimit)
	found := row{seq: seq}
	switch {
	case isSilent(ctx, err):
		found.state = rowSilent
	case err != nil:
		return err
	case attached:
		found.state, found.id = rowAttached, identity{dev: device.BackingDevice, ino: device.BackingInode}
	}
	m.table.put(number, found)
	return nil
}

// sysSeq reads the sequence number of a device's disk without opening the device. Before Linux 5.15 there is none.
func sysSeq(number int) (uint64, error) {
	file, err := open(sysPath(number, "diskseq"), unix.O_RDONLY)
	if err != nil {
		return 0, err
	}
	defer file.close()
	var buffer [32]byte
	n := 0
	err = ignoringEINTR(func() (err error) { n, err = unix.Read(file.fd, buffer[:]); return err })
	if err != nil {
		return 0, &fs.PathError{Op: "read", Path: file.name, Err: err}
	}
	return strconv.ParseUint(strings.TrimSpace(string(buffer[:n])), 10, 64)
}

// hasFile reports whether sysfs has the directory that a device has only while it is attached. What cannot be found out
// counts as attached, so that the device itself is asked.
func hasFile(number int) bool {
	_, err := os.Lstat(sysPath(number, "loop"))
	return !errors.Is(err, fs.ErrNotExist)
}

// having returns the devices that have a file, as the table knows them, after each was asked whether it still has it.
func (m *Manager) having(f backing) ([]Device, error) {
	numbers, silent := m.table.with(f.id)
	var found []Device
	for _, number := range numbers {
		device, attached, err := m.inspect(number)
		if err != nil {
			return nil, err
		}
		if attached && device.hasIdentity(f.id) {
			found = append(found, device)
		}
	}
	return found, f.checkSilent(silent)
}

func (d Device) hasIdentity(id identity) bool { return d.BackingDevice == id.dev && d.BackingInode == id.ino }

// checkSilent refuses a file that a device that does not answer may have. The file itself has just answered, and so the
// device has another one, unless its path says the contrary.
func (f backing) checkSilent(silent []int) error {
	if len(silent) == 0 {
		return nil
	}
	path, err := os.Readlink(f.proc())
	if err != nil {
		return err
	}
	path = strings.TrimSuffix(path, deletedMark)
	for _, number := range silent {
		if other, _ := sysBacking(number); other == path {
			return fmt.Errorf("%s does not answer and may have %q: %w", nodePath(number), path, ErrInUse)
		}
	}
	return nil
}

// findFile returns the one device that has the file.
func (m *Manager) findFile(ctx context.Context, file *os.File) (Device, error) {
	return withHandle(file, func(h handle) (Device, error) {
		f, err := regular(ctx, h)
		if err != nil {
			return Device{}, err
		}
		if err := m.catchUp(ctx, 0); err != nil {
			return Device{}, err
		}
		return m.oneOf(f)
	})
}

// oneOf returns the one device that the table has for the file.
func (m *Manager) oneOf(f backing) (Device, error) {
	found, err := m.having(f)
	switch {
	case err != nil:
		return Device{}, err
	case len(found) == 0:
		return Device{}, fmt.Errorf("%q: %w", f.name, ErrNotAttached)
	case len(found) > 1:
		return Device{}, severalError(found)
	}
	return found[0], nil
}

func severalError(found []Device) error {
	return fmt.Errorf("it is attached to %s and to %s: detach all but one: %w", found[0].Path, found[1].Path, ErrInUse)
}
