package bench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"k8s.io/kubernetes/pkg/volume/util/volumepathhandler"

	"github.com/volumekit/volumekit/bench/internal/limits"
	"github.com/volumekit/volumekit/mount/loop"
	"github.com/volumekit/volumekit/mount/mounttest"
)

// loopUser attaches a file to a loop device and detaches it.
type loopUser struct {
	name   string
	attach func(file string) error
	detach func(file string) error
}

func loopUsers(ctx context.Context, ctl *limits.LoopControl) []loopUser {
	theirs, ours := volumepathhandler.NewBlockVolumePathHandler(), loop.New(loop.Options{})
	return []loopUser{
		{"k8s", func(file string) error { _, err := theirs.AttachFileDevice(file); return err }, theirs.DetachFileDevice},
		oursWith(ctx, ours, "ours", loop.AttachOptions{}),
		oursWith(ctx, ours, "ours-direct", loop.AttachOptions{DirectIO: true}),
		limitWith(ctl, "limit", 0),
		limitWith(ctl, "limit-direct", unix.LO_FLAGS_DIRECT_IO),
	}
}

func oursWith(ctx context.Context, m *loop.Manager, name string, options loop.AttachOptions) loopUser {
	var device loop.Device
	return loopUser{name, func(file string) (err error) {
		device, err = m.Attach(ctx, file, options)
		return err
	}, func(string) error { return m.Detach(ctx, device) }}
}

func limitWith(ctl *limits.LoopControl, name string, flags uint32) loopUser {
	fd := -1
	return loopUser{name, func(file string) (err error) {
		_, fd, err = ctl.Attach(file, flags)
		return err
	}, func(string) error { return ctl.Detach(fd) }}
}

// BenchmarkLoop attaches a file of 16 MiB to a loop device and detaches it, beside n attached others.
func BenchmarkLoop(b *testing.B) {
	mounttest.RequireRoot(b)
	ctl, err := limits.OpenLoopControl()
	must(b, err)
	b.Cleanup(func() { must(b, ctl.Close()) })
	removeNewLoopDevices(b, ctl)
	dir := scratch(b)
	target := image16MiB(b, dir, "target")
	for _, n := range []int{0, 64, 512} {
		detachOthers := attachOthers(b, ctl, dir, n)
		showLoopDevices(b)
		for _, u := range loopUsers(deadline(b), ctl) {
			b.Run(fmt.Sprintf("attached=%d/impl=%s", n, u.name), func(b *testing.B) {
				b.ReportAllocs()
				must(b, u.attach(target)) // the first pair of a Manager looks at all devices: see BenchmarkLoopFirst
				must(b, u.detach(target))
				reportChildren, reportCPU := countChildren(b), countCPU(b)
				for b.Loop() {
					must(b, u.attach(target))
					must(b, u.detach(target))
				}
				reportCPU()
				reportChildren()
			})
		}
		detachOthers()
	}
}

// BenchmarkLoopFirst is the first attach and detach of a Manager, which looks at all devices once in its life.
func BenchmarkLoopFirst(b *testing.B) {
	mounttest.RequireRoot(b)
	ctl, err := limits.OpenLoopControl()
	must(b, err)
	b.Cleanup(func() { must(b, ctl.Close()) })
	removeNewLoopDevices(b, ctl)
	dir := scratch(b)
	target := image16MiB(b, dir, "target")
	attachOthers(b, ctl, dir, 512)
	showLoopDevices(b)
	ctx := deadline(b)
	theirs := volumepathhandler.NewBlockVolumePathHandler()
	b.Run("attached=512/impl=k8s", func(b *testing.B) {
		for b.Loop() {
			_, err := theirs.AttachFileDevice(target)
			must(b, err)
			must(b, theirs.DetachFileDevice(target))
		}
	})
	b.Run("attached=512/impl=ours", func(b *testing.B) {
		for b.Loop() {
			m := loop.New(loop.Options{})
			device, err := m.Attach(ctx, target, loop.AttachOptions{})
			must(b, err)
			must(b, m.Detach(ctx, device))
		}
	})
}

func image16MiB(b *testing.B, dir, name string) string {
	p := filepath.Join(dir, name)
	must(b, os.WriteFile(p, nil, 0o600))
	must(b, os.Truncate(p, 16<<20))
	return p
}

// free is how many devices without a file there are beside those with one.
const free = 8

// attachOthers attaches n files. They are detached by the function that is returned, or with the benchmark. It has some
// more attached before, so that the kernel has free devices then and need not add one while it is measured.
func attachOthers(b *testing.B, ctl *limits.LoopControl, dir string, n int) (detach func()) {
	var others []int
	detachFrom := func(first int) {
		for _, fd := range others[first:] {
			must(b, ctl.Detach(fd))
		}
		others = others[:first]
	}
	b.Cleanup(func() { detachFrom(0) })
	for i := range n + free {
		_, fd, err := ctl.Attach(image16MiB(b, dir, fmt.Sprintf("other-%d-%d", n, i)), 0)
		must(b, err)
		others = append(others, fd)
	}
	detachFrom(n)
	return func() { detachFrom(0) }
}

// removeNewLoopDevices removes with the benchmark the devices that the kernel has added for it.
func removeNewLoopDevices(b *testing.B, ctl *limits.LoopControl) {
	before := loopDevices(b)
	b.Cleanup(func() {
		for _, n := range loopDevices(b) {
			if !slices.Contains(before, n) {
				ctl.Remove(n)
			}
		}
	})
}

const virtualDevices = "/sys/devices/virtual/block"

// loopDevices lists the numbers of the machine's loop devices, lowest first.
func loopDevices(b *testing.B) []int {
	list, err := filepath.Glob(virtualDevices + "/loop*")
	must(b, err)
	var ns []int
	for _, p := range list {
		if n, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(p), "loop")); err == nil {
			ns = append(ns, n)
		}
	}
	slices.Sort(ns)
	return ns
}

// showLoopDevices leaves in /sys/block, in this mount namespace, only the loop devices that are attached and some free
// ones: Kubernetes looks through all of them, and earlier users of the machine may have left thousands.
func showLoopDevices(b *testing.B) {
	must(b, unix.Mount("tmpfs", "/sys/block", "tmpfs", 0, ""))
	b.Cleanup(func() { must(b, unix.Unmount("/sys/block", unix.MNT_DETACH)) })
	shown := 0
	for _, n := range loopDevices(b) {
		device := fmt.Sprintf("%s/loop%d", virtualDevices, n)
		if _, err := os.Stat(device + "/loop"); err != nil {
			if shown++; shown > free {
				continue
			}
		}
		must(b, os.Symlink(device, fmt.Sprintf("/sys/block/loop%d", n)))
	}
}
