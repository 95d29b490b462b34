package loop

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/abandonable"
	"github.com/volumekit/volumekit/mount"
)

// at returns the state of the device at path.
func (i inspector) at(ctx context.Context, path string) (Device, error) {
	number, ok := loopNumber(filepath.Base(path))
	if !ok || filepath.Dir(path) != devDir {
		return Device{}, fmt.Errorf("%q is no loop device: %w", path, ErrNotAttached)
	}
	device, attached, err := i.within(ctx, 0, number, i.inspect)
	if err == nil && !attached {
		err = fmt.Errorf("%s has no file: %w", path, ErrNotAttached)
	}
	return device, err
}

// inspect reads the file of a device. It reports a free or missing device as not attached. The call (LOOP_GET_STATUS64)
// reaches the filesystem of the backing file, so it may hang.
func (i inspector) inspect(number int) (Device, bool, error) {
	device, attached, err := i.identify(number)
	if attached {
		device.BackingPath, device.Deleted = sysBacking(number)
	}
	return device, attached, err
}

// identify is inspect without the path of the backing file, which is slow to read and not needed for decisions.
func (i inspector) identify(number int) (Device, bool, error) {
	node, err := i.nodes.open(number, unix.O_RDONLY)
	if isGone(err) {
		return Device{}, false, nil
	}
	if err != nil {
		return Device{}, false, err
	}
	defer node.close()
	return inspectNode(node, number)
}

// inspectNode reads all but the path of the backing file.
func inspectNode(node handle, number int) (Device, bool, error) {
	info, err := status(node)
	if isGone(err) {
		return Device{}, false, nil
	}
	if err != nil {
		return Device{}, false, fmt.Errorf("LOOP_GET_STATUS64 of %q: %w: %w", node.name, errNoAnswer, err)
	}
	seq, err := node.ioctlUint64(unix.BLKGETDISKSEQ)
	if err != nil {
		seq = 0
	}
	device := Device{
		Path: node.name, Number: number, Major: unix.Major(node.rdev), Minor: unix.Minor(node.rdev),
		DiskSeq:       seq,
		BackingDevice: info.Device, BackingInode: info.Inode, BackingRdev: info.Rdevice,
		Label:     string(bytes.TrimRight(info.File_name[:], "\x00")),
		ReadOnly:  info.Flags&unix.LO_FLAGS_READ_ONLY != 0,
		DirectIO:  info.Flags&unix.LO_FLAGS_DIRECT_IO != 0,
		AutoClear: info.Flags&unix.LO_FLAGS_AUTOCLEAR != 0,
		Offset:    info.Offset, SizeLimit: info.Sizelimit,
	}
	return device, true, nil
}

func status(node handle) (*unix.LoopInfo64, error) {
	var info *unix.LoopInfo64
	err := ignoringEINTR(func() (err error) { info, err = unix.IoctlLoopGetStatus64(node.fd); return err })
	return info, err
}

const deletedMark = " (deleted)"

// sysBacking reads the path of the backing file from sysfs. Use it only in messages: the kernel adds a mark to the path of
// a deleted file, and a file's name can end with that mark.
func sysBacking(number int) (path string, deleted bool) {
	content, err := os.ReadFile(sysPath(number, "loop/backing_file"))
	if err != nil {
		return "", false
	}
	return strings.CutSuffix(strings.TrimSuffix(string(content), "\n"), deletedMark)
}

// queryLimit is how long to wait for the answer of a device that is not the caller's own. A device answers in a microsecond,
// unless the filesystem of its backing file hangs.
const queryLimit = 250 * time.Millisecond

// within calls ask for a device. It abandons the call when ctx ends, or after limit; a limit of zero means none.
func (i inspector) within(ctx context.Context, limit time.Duration, number int,
	ask func(number int) (Device, bool, error),
) (Device, bool, error) {
	if limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	attached := false
	device, err := abandonable.Value(ctx, i.calls, look(nodePath(number)), func(ctx context.Context) (Device, error) {
		if err := abandonable.Begin(ctx, "LOOP_GET_STATUS64"); err != nil {
			return Device{}, err
		}
		device, is, err := ask(number)
		if !is {
			device = Device{Number: -1}
		}
		return device, err
	})
	if err == nil {
		attached = device.Number >= 0
	}
	return device, attached, err
}

// errNoAnswer says that a device could not report its file because the filesystem of the file is dead.
var errNoAnswer = errors.New("the filesystem of its backing file does not answer")

// isSilent reports whether err says that a device did not answer, or not in time. It is false once ctx has ended.
func isSilent(ctx context.Context, err error) bool {
	return ctx.Err() == nil &&
		(errors.Is(err, errNoAnswer) || errors.Is(err, mount.ErrStuck) || errors.Is(err, context.DeadlineExceeded))
}

// has opens the device and reports whether it still has its file.
func (i inspector) has(device Device) (bool, error) {
	node, err := i.nodes.open(device.Number, unix.O_RDONLY)
	if isGone(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer node.close()
	return stillHas(node, device)
}
