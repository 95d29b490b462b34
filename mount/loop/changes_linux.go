package loop

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// attach gives the file to a device that is free, and returns that with its open node.
func (c *changes) attach(ctx context.Context, a attachment) (Device, handle, error) {
	defer c.begin(ctx)()
	number, err := freeNumber()
	if err != nil {
		return Device{}, handle{}, err
	}
	return c.attachTo(number, a)
}

// attachTo gives the file to the device with that number. It does not open the device with O_EXCL: another program may have
// attached a file since, and could not mount it meanwhile. The kernel refuses to give a file to a device that has one, or that is
// in exclusive use.
func (c *changes) attachTo(number int, a attachment) (Device, handle, error) {
	node, err := c.nodes.open(number, a.mode)
	if err != nil {
		return Device{}, handle{}, takenOr(err)
	}
	c.settle(node, number)
	device, err := c.configure(node, number, a)
	if err != nil {
		node.close()
		return Device{}, handle{}, err
	}
	return device, node, nil
}

func (c *changes) configure(node handle, number int, a attachment) (Device, error) {
	err := configureNode(node, a)
	if errors.Is(err, errNotInOneStep) {
		err = c.configureExclusively(number, a)
	}
	if err != nil {
		return Device{}, fmt.Errorf("cannot configure %s: %w", node.name, takenOr(err))
	}
	device, attached, err := inspectNode(node, number)
	if err == nil && (!attached || !device.hasIdentity(a.file.id)) {
		return Device{}, fmt.Errorf("%s lost the file at once: %w", node.name, errTaken)
	}
	if err != nil {
		return Device{}, errors.Join(err, clearFile(node))
	}
	device.BackingPath = a.file.realPath()
	c.rows.setOwn(number, row{seq: device.DiskSeq, state: rowAttached, id: a.file.id})
	return device, nil
}

// configureExclusively opens the device with O_EXCL: no other process can mount it between two steps.
func (c *changes) configureExclusively(number int, a attachment) error {
	node, err := c.nodes.open(number, a.mode|unix.O_EXCL)
	if err != nil {
		return err
	}
	defer node.close()
	return configureInSteps(node, a)
}

// detach detaches the file from an open device and closes it. It reports whether the device may still have the file. EBUSY: the
// device is in exclusive use.
func (c *changes) detach(ctx context.Context, node handle, device Device) (lingers bool, err error) {
	defer c.begin(ctx)()
	c.settle(node, device.Number)
	err = clearFile(node)
	if err == nil {
		// No other process has it open: it loses its file at once, and is free for others with the close.
		if err = clearAgain(node, device); !isGone(err) {
			lingers, err = true, nil
		}
	}
	node.close()
	switch {
	case isGone(err):
		c.detached(device.Number, device.DiskSeq)
		return false, nil
	}
	return lingers, err
}

// settle reads the sequence number of the last detachment. The next change can then be seen to follow it. node is the open node
// of the device with that number. Detach leaves this to the next change, which mostly opens the same device.
func (c *changes) settle(node handle, number int) {
	switch before := c.takePending(); before {
	case noDevice:
	case number:
		c.noteFreeNode(node, number)
	default:
		c.noteFree(before)
	}
}

// noteFree records that a device was detached, if it is still free.
func (c *changes) noteFree(number int) {
	node, err := c.nodes.open(number, unix.O_RDONLY)
	if err != nil {
		return
	}
	defer node.close()
	c.noteFreeNode(node, number)
}

// noteFreeNode reads the sequence number first: if the device gets another file meanwhile, the number changes.
func (c *changes) noteFreeNode(node handle, number int) {
	seq, err := node.ioctlUint64(unix.BLKGETDISKSEQ)
	if err != nil {
		return
	}
	if _, err := status(node); isGone(err) {
		c.rows.setOwn(number, row{seq: seq, state: rowFree})
	}
}
