package loop

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/abandonable"
)

// catchUp makes the rows complete up to the change with number seq, which was made before; 0 asks for a look in any
// case. It asks the devices that have changed since they were last asked, and only reads of the others that they have not.
func (x index) catchUp(ctx context.Context, seq uint64) error {
	if err := abandonable.Begin(ctx, "scan of loop devices"); err != nil {
		return err
	}
	end, err := x.beginScan(ctx)
	if err != nil {
		return fmt.Errorf("looking at loop devices: %w", err)
	}
	defer end()
	if x.complete(seq) {
		return nil
	}
	before := x.snapshot()
	present, err := x.refreshAll(ctx)
	if err != nil {
		return fmt.Errorf("looking at loop devices: %w", err)
	}
	x.scanned(seq, before, present)
	return nil
}

// refreshAll brings the rows of all devices that sysfs shows up to date, free ones too, and returns their numbers.
func (x index) refreshAll(ctx context.Context) ([]int, error) {
	dir, err := os.Open(sysBlock)
	if err != nil {
		return nil, fmt.Errorf("mount sysfs at /sys: %w", err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	numbers := make([]int, 0, len(names))
	for _, name := range names {
		if number, ok := loopNumber(name); ok {
			numbers = append(numbers, number)
		}
	}
	slices.Sort(numbers)
	_, err = withHandle(dir, func(h handle) (struct{}, error) {
		for _, number := range numbers {
			if err := x.refresh(ctx, sysDevice{dir: h.fd, name: "loop" + strconv.Itoa(number), number: number}); err != nil {
				return struct{}{}, err
			}
		}
		return struct{}{}, nil
	})
	return numbers, err
}

// refresh brings one row up to date. A device is asked when its number has changed; the number is read first, so that
// what changes meanwhile is asked again next time.
func (x index) refresh(ctx context.Context, d sysDevice) error {
	seq, err := d.seq()
	if err != nil && !isMissing(err) {
		return err
	}
	known, ok := x.get(d.number)
	if ok && seq != 0 && known.seq == seq && known.state != rowSilent {
		return nil
	}
	if seq == 0 && !d.hasFile() {
		x.put(d.number, row{})
		return nil
	}
	found, err := x.queryRow(ctx, d)
	if err != nil {
		return err
	}
	found.seq = seq
	x.put(d.number, found)
	return nil
}

// queryRow asks a device what it has. One that sysfs shows as free is asked, too: it may be about to get its file, and has
// counted the change already. There is no filesystem yet that could make it hang.
func (x index) queryRow(ctx context.Context, d sysDevice) (row, error) {
	ask := func() (Device, bool, error) {
		return x.inspector.within(ctx, queryLimit, d.number, x.inspector.identify)
	}
	if !d.hasFile() {
		ask = func() (Device, bool, error) { return x.inspector.identify(d.number) }
	}
	device, attached, err := ask()
	switch {
	case isSilent(ctx, err):
		return row{state: rowSilent}, nil
	case err != nil:
		return row{}, err
	case attached:
		return row{state: rowAttached, id: identity{dev: device.BackingDevice, ino: device.BackingInode}}, nil
	}
	return row{state: rowFree}, nil
}

// sysDevice is what sysfs shows of a device, at name beneath an open directory. Nothing there waits for anything.
type sysDevice struct {
	dir    int
	name   string
	number int
}

// sysDeviceOf is for one device, where no directory is open.
func sysDeviceOf(number int) sysDevice {
	return sysDevice{dir: unix.AT_FDCWD, name: sysBlock + "/loop" + strconv.Itoa(number), number: number}
}

// read returns a short line.
func (d sysDevice) read(element string) (string, error) {
	fd := -1
	err := ignoringEINTR(func() (err error) {
		fd, err = unix.Openat(d.dir, d.name+"/"+element, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return "", &fs.PathError{Op: "open", Path: sysPath(d.number, element), Err: err}
	}
	defer func() { _ = unix.Close(fd) }()
	var buffer [32]byte
	n := 0
	err = ignoringEINTR(func() (err error) { n, err = unix.Read(fd, buffer[:]); return err })
	if err != nil {
		return "", &fs.PathError{Op: "read", Path: sysPath(d.number, element), Err: err}
	}
	return strings.TrimSpace(string(buffer[:n])), nil
}

// seq reads the sequence number of the device's disk without opening the device. Before Linux 5.15 there is none.
func (d sysDevice) seq() (uint64, error) {
	content, err := d.read("diskseq")
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(content, 10, 64)
}

// hasFile reports whether sysfs has the directory that a device has only while it is attached. What cannot be found out
// counts as attached.
func (d sysDevice) hasFile() bool {
	var st unix.Stat_t
	err := unix.Fstatat(d.dir, d.name+"/loop", &st, unix.AT_SYMLINK_NOFOLLOW)
	return !errors.Is(err, unix.ENOENT)
}

// having returns the devices that have a file, as the rows say, after each was asked whether it still has it.
func (x index) having(f backing) ([]Device, error) {
	numbers, silent := x.with(f.id)
	var found []Device
	for _, number := range numbers {
		device, attached, err := x.inspector.inspect(number)
		if err != nil {
			return nil, err
		}
		if attached && device.hasIdentity(f.id) {
			found = append(found, device)
		}
	}
	return found, f.checkSilent(silent)
}

func (d Device) hasIdentity(id identity) bool {
	return d.BackingDevice == id.dev && d.BackingInode == id.ino
}

// checkSilent refuses a file that a device that does not answer may have. The file itself has just answered, and so the
// device has another one, unless its path says the contrary, or could not say so since the file has another name, too.
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
		if other, _ := sysBacking(number); other == path || f.links > 1 {
			return fmt.Errorf("%s does not answer and may have %q, which has %d names: %w", nodePath(number), path, f.links, ErrInUse)
		}
	}
	return nil
}

// find returns the one device that has the file.
func (x index) find(ctx context.Context, h handle) (Device, error) {
	f, err := regular(ctx, h)
	if err != nil {
		return Device{}, err
	}
	if err := x.catchUp(ctx, 0); err != nil {
		return Device{}, err
	}
	return x.oneOf(f)
}

// oneOf returns the one device that the table has for the file.
func (x index) oneOf(f backing) (Device, error) {
	found, err := x.having(f)
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

// devices asks every device that has a file.
func (x index) devices(ctx context.Context) ([]Device, error) {
	if err := x.catchUp(ctx, 0); err != nil {
		return nil, err
	}
	var all []Device
	for number, known := range x.snapshot() {
		if known.state == rowFree {
			continue
		}
		device, attached, err := x.inspector.within(ctx, queryLimit, number, x.inspector.inspect)
		if isSilent(ctx, err) {
			device, attached, err = x.silentDevice(number, known), true, nil
		}
		if err != nil {
			return nil, fmt.Errorf("looking at loop devices: %w", err)
		}
		if attached {
			all = append(all, device)
		}
	}
	slices.SortFunc(all, func(a, b Device) int { return cmp.Compare(a.Number, b.Number) })
	return all, nil
}

// silentDevice is what is known of a device that does not answer.
func (x index) silentDevice(number int, known row) Device {
	rdev := x.inspector.nodes.rdev(number)
	d := Device{
		Path: nodePath(number), Number: number, Major: unix.Major(rdev), Minor: unix.Minor(rdev),
		Silent: true, DiskSeq: known.seq, BackingDevice: known.id.dev, BackingInode: known.id.ino,
	}
	d.BackingPath, d.Deleted = sysBacking(number)
	return d
}
