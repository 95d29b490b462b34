package format

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// onDevice makes the filesystem on a block device. It has the device open with O_EXCL from the first read of the proof to the end
// of the tool: no other process can mount or format it meanwhile.
//
// Every mkfs opens its device with O_EXCL too, and would fail. It therefore works on a loop device over the open descriptor.
func (m making) onDevice(ctx context.Context, device *os.File) error {
	held, err := hold(device)
	if err != nil {
		return err
	}
	err = errors.Join(m.onHeld(ctx, held), held.Close())
	if err == nil {
		awaitRelease(ctx, device)
	}
	return err
}

// hold opens the device again, with O_EXCL.
func hold(device *os.File) (*os.File, error) {
	held, err := reopen(device, unix.O_RDWR|unix.O_EXCL)
	if errors.Is(err, unix.EBUSY) {
		return nil, fmt.Errorf("%q is mounted, perhaps in another mount namespace, or opened exclusively: it is not formatted: %w: %w",
			device.Name(), ErrInUse, err)
	}
	return held, err
}

func (m making) onHeld(ctx context.Context, held *os.File) error {
	proven, err := m.prove(ctx, held)
	if err != nil {
		return err
	}
	shown, err := attachForNow(ctx, held)
	if err != nil {
		return fmt.Errorf("a loop device, which keeps %q from others meanwhile: %w", held.Name(), err)
	}
	err = m.onShown(ctx, held, shown, proven)
	return errors.Join(err, shown.Close())
}

// onShown runs the tool on the loop device that shows the held one.
func (m making) onShown(ctx context.Context, held, shown *os.File, proven int64) error {
	for _, file := range []*os.File{held, shown} {
		if err := checkSize(file, proven); err != nil {
			return err
		}
	}
	if err := m.runWhileBlank(ctx, held, shown); err != nil {
		return err
	}
	if err := errors.Join(shown.Sync(), held.Sync()); err != nil {
		return fmt.Errorf("after mkfs.%s: %w", m.options.FSType, err)
	}
	return verifyMade(ctx, held, m.options.FSType)
}

// maxRuns is how often a tool is run that fails and leaves its device blank.
const maxRuns = 3

// runWhileBlank runs the tool, again where it has failed and written nothing: a process that was told the number of the loop
// device before that was attached may have claimed it for a moment.
func (m making) runWhileBlank(ctx context.Context, held, shown *os.File) error {
	for n := 1; ; n++ {
		err := m.runTool(ctx, shown)
		var tool *ToolError
		if errors.As(err, &tool) {
			tool.Device = held.Name()
		}
		if tool == nil || tool.ExitCode < 0 || n == maxRuns {
			return err
		}
		if _, proof := m.prove(ctx, held); proof != nil {
			return err
		}
	}
}

// awaitRelease waits until a process that has opened the loop device, such as udev's, has closed it, so that the caller can mount
// what was made. That another program claims the device by then is for the caller to find out.
func awaitRelease(ctx context.Context, device *os.File) {
	_ = whileBusy(ctx, func() error {
		claim, err := reopen(device, unix.O_RDONLY|unix.O_EXCL)
		if err != nil {
			return err
		}
		return claim.Close()
	})
}
