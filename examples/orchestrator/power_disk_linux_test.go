package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/faultrun"
	"github.com/volumekit/volumekit/mount/loop"
)

// outage is a filesystem and what a power cut does to it.
type outage struct {
	name    string
	size    int64
	mkfs    []string
	fsType  string
	options string
	flag    uint32   // of the ioctl that cuts it off
	check   []string // changes nothing
	every   int      // so many calls one is tried of, to keep within CI's time
}

// goDown is the ioctl that cuts off a filesystem, XFS_IOC_GOINGDOWN, which ext4 has too. With goDownNoLog nothing is
// written any more: what was not synced is as it was. With goDownLog the log is: names are new and content is old, since what
// was written and not synced is lost all the same.
const (
	goDown      = 0x8004587d
	goDownLog   = 1
	goDownNoLog = 2
)

func outages() []outage {
	ext4 := outage{
		size: 64 << 20, fsType: "ext4", mkfs: []string{"mkfs.ext4", "-q", "-E", "nodiscard"}, check: []string{"e2fsck", "-fn"},
		// The kernel is not to write by itself, nor in an order that saves who forgets to sync.
		options: "commit=300,noauto_da_alloc,data=writeback",
	}
	// The disks of all machines are copies of one.
	xfs := outage{size: 320 << 20, fsType: "xfs", options: "nouuid", mkfs: []string{"mkfs.xfs", "-q"}, check: []string{"xfs_repair", "-n"}}
	odd := []int{37, 41, 43, 47}
	var all []outage
	for _, o := range []outage{ext4, xfs} {
		o.name, o.flag, o.every = o.fsType+", what was not synced is lost", goDownNoLog, odd[len(all)]
		all = append(all, o)
		o.name, o.flag, o.every = o.fsType+", content that was not synced is lost", goDownLog, odd[len(all)]
		all = append(all, o)
	}
	return all
}

// extent is a part of a new filesystem that is not zero.
type extent struct {
	at      int64
	content []byte
}

// format makes the filesystem in a file and returns what is in it.
func (o outage) format(t *testing.T, name string) []extent {
	t.Helper()
	require.NoError(t, os.WriteFile(name, nil, 0o600))
	require.NoError(t, os.Truncate(name, o.size))
	out, err := exec.CommandContext(t.Context(), o.mkfs[0], append(o.mkfs[1:], name)...).CombinedOutput()
	require.NoError(t, err, string(out))
	content, err := os.ReadFile(name)
	require.NoError(t, err)
	require.NoError(t, os.Remove(name))
	const block = 4096
	var extents []extent
	for at := 0; at < len(content); at += block {
		if part := content[at : at+block]; !bytes.Equal(part, make([]byte, block)) {
			extents = append(extents, extent{int64(at), bytes.Clone(part)})
		}
	}
	return extents
}

// machine is a node with a disk, which outlives a power cut. All else of it is in memory: a boot begins with nothing but the
// disk.
type machine struct {
	*node
	outage outage
	disk   loop.Device
	loops  *loop.Manager
	boots  int
}

// newMachine makes a machine, whose disk is a file in dir, and boots it.
func newMachine(ctx context.Context, p programs, dir string, o outage, disk []extent) (*machine, error) {
	m := &machine{
		node:   &node{programs: p, filesystem: ext4(), dir: filepath.Join(dir, "node")},
		outage: o, loops: loop.New(loop.Options{}),
	}
	if err := os.Mkdir(m.dir, 0o755); err != nil {
		return nil, err
	}
	name := filepath.Join(dir, "disk")
	if err := o.write(name, disk); err != nil {
		return nil, err
	}
	var err error
	if m.disk, err = m.loops.Attach(ctx, name, loop.AttachOptions{}); err != nil {
		return nil, err
	}
	if err := errors.Join(m.boot(ctx), m.keep()); err != nil {
		return nil, errors.Join(err, m.close(ctx))
	}
	return m, nil
}

func (o outage) write(name string, disk []extent) error {
	file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	err = file.Truncate(o.size)
	for _, e := range disk {
		_, e := file.WriteAt(e.content, e.at)
		err = errors.Join(err, e)
	}
	return errors.Join(err, file.Close())
}

// boot begins a boot: a mount namespace with the disk and an empty memory, and an id of its own. The disk's filesystem
// replays its log.
func (m *machine) boot(ctx context.Context) error {
	namespace, err := faultrun.NewNamespace()
	if err != nil {
		return err
	}
	m.namespace = namespace
	m.boots++
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return namespace.Do(func() error {
		if err := m.furnish(); err != nil {
			return err
		}
		// A check whether a device is in use opens it exclusively for a moment.
		mounted := func() error {
			err := unix.Mount(m.disk.Path, m.path("root"), m.outage.fsType, 0, m.outage.options)
			if errors.Is(err, unix.EBUSY) {
				return loop.ErrInUse
			}
			return err
		}
		id := m.path("boot_id")
		return errors.Join(
			os.WriteFile(id, fmt.Appendf(nil, "b0070000-0000-4000-8000-%012d\n", m.boots), 0o444),
			unix.Mount(id, "/proc/sys/kernel/random/boot_id", "", unix.MS_BIND, ""),
			os.Mkdir(m.path("root"), 0o755),
			until(ctx, mounted),
		)
	})
}

// kept is a foreign file on the disk.
const kept = "root/plugins/volumekit.io/loop-block/mounts/foreign/file"

func (m *machine) keep() error {
	return m.namespace.Do(func() error {
		if err := os.MkdirAll(filepath.Dir(m.path(kept)), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(m.path(kept), []byte(kept), 0o644); err != nil {
			return err
		}
		unix.Sync()
		return nil
	})
}

func (m *machine) checkKept() error {
	return m.namespace.Do(func() error {
		content, err := os.ReadFile(m.path(kept))
		if err == nil && string(content) != kept {
			err = fmt.Errorf("%s says %q", kept, content)
		}
		return err
	})
}

// cut cuts the power off, when no agent is alive any more, and gives it back.
func (m *machine) cut(ctx context.Context) error {
	if err := m.halt(ctx, func() error { return shutDown(m.path("root"), m.outage.flag) }); err != nil {
		return err
	}
	return m.boot(ctx)
}

// halt ends a boot: its mounts and its loop devices are gone, and the disk is unused.
func (m *machine) halt(ctx context.Context, last func() error) error {
	var attached []loop.Device
	err := m.namespace.Do(func() error {
		var err error
		attached, err = m.attached(ctx)
		return errors.Join(err, last())
	})
	err = errors.Join(err, m.namespace.Close())
	m.namespace = nil
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for _, d := range attached {
		err = errors.Join(err, until(ctx, func() error { return m.loops.Detach(ctx, d) }))
	}
	return errors.Join(err, until(ctx, func() error {
		if opened, err := m.loops.DeviceOpened(ctx, m.disk.Path); err != nil || !opened {
			return err
		}
		return loop.ErrInUse
	}))
}

// until does something until it does not fail because something is in use, which ends with the last look at a mount.
func until(ctx context.Context, do func() error) error {
	for {
		err := do()
		if !errors.Is(err, loop.ErrInUse) || ctx.Err() != nil {
			return err
		}
		<-time.After(2 * time.Millisecond)
	}
}

// shutDown cuts a filesystem off.
func shutDown(path string, flag uint32) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	defer dir.Close()
	return unix.IoctlSetPointerInt(int(dir.Fd()), goDown, int(flag))
}

// attached returns the loop devices whose files are on the disk, after those that lock them.
func (m *machine) attached(ctx context.Context) ([]loop.Device, error) {
	var disk unix.Stat_t
	if err := unix.Stat(m.path("root"), &disk); err != nil {
		return nil, err
	}
	all, err := m.loops.Devices(ctx)
	var locks, here []loop.Device
	for _, d := range all {
		if d.BackingDevice != disk.Dev || d.BackingRdev != 0 {
			continue
		}
		here = append(here, d)
		for _, lock := range all {
			if lock.BackingRdev == unix.Mkdev(d.Major, d.Minor) {
				locks = append(locks, lock)
			}
		}
	}
	return append(locks, here...), err
}

// close halts the machine in good order and looks at its disk.
func (m *machine) close(ctx context.Context) error {
	var err error
	if m.namespace != nil {
		err = m.halt(ctx, func() error { return nil })
	}
	out, e := exec.CommandContext(ctx, m.outage.check[0], append(m.outage.check[1:], m.disk.Path)...).CombinedOutput()
	if e != nil {
		err = errors.Join(err, fmt.Errorf("the filesystem of the disk is not sound: %w:\n%s", e, out))
	}
	return errors.Join(err, m.loops.Detach(ctx, m.disk), os.Remove(m.disk.BackingPath))
}
