package bench

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/bench/internal/limits"
)

// image is an ext4 filesystem in a file behind a loop device with direct I/O: when it is unmounted and the device is
// detached, nothing of it is left in any cache here. Its tree is in dir.
type image struct {
	file, mnt, dir, dev string
	ctl                 *limits.LoopControl
	fd                  int // of the device, or -1
}

// newImage returns an image with the tree of c, not mounted. What the benchmark mounts of it goes with the benchmark.
func newImage(b *testing.B, c treeCase) *image {
	v := &image{fd: -1}
	var err error
	v.ctl, err = limits.OpenLoopControl()
	must(b, err)
	b.Cleanup(func() {
		v.unmount(b)
		must(b, v.ctl.Close())
	})
	v.place(keep(b, fmt.Sprintf("image-%d", c.files), func(base string) {
		v.place(base)
		v.format(b, c.files)
		v.remount(b)
		must(b, os.Mkdir(v.dir, 0o755))
		makeTree(b, v.dir, c.files, 100)
		v.unmount(b)
	}))
	return v
}

func (v *image) place(base string) {
	v.file, v.mnt = filepath.Join(base, "img"), filepath.Join(base, "mnt")
	v.dir = filepath.Join(v.mnt, "tree")
}

// format makes a filesystem with room for n files.
func (v *image) format(tb testing.TB, n int) {
	must(tb, os.Mkdir(v.mnt, 0o755))
	must(tb, os.WriteFile(v.file, nil, 0o600))
	must(tb, os.Truncate(v.file, int64(n)*6<<10+64<<20))
	out, err := exec.Command("mkfs.ext4", "-q", "-F", "-N", strconv.Itoa(n+n/10+1000), v.file).CombinedOutput()
	if err != nil {
		tb.Fatalf("mkfs.ext4: %v %s", err, out)
	}
}

func (v *image) unmount(tb testing.TB) {
	if v.fd < 0 {
		return
	}
	fd := v.fd
	v.fd = -1
	if err := unix.Unmount(v.mnt, 0); err != nil && err != unix.EINVAL { // EINVAL: it was not mounted
		tb.Errorf("unmounting %s: %v", v.mnt, err)
	}
	must(tb, v.ctl.Detach(fd))
}

func (v *image) remount(tb testing.TB) {
	v.unmount(tb)
	var err error
	v.dev, v.fd, err = v.ctl.Attach(v.file, unix.LO_FLAGS_DIRECT_IO)
	must(tb, err)
	must(tb, unix.Mount(v.dev, v.mnt, "ext4", unix.MS_NOATIME, ""))
}

// sync waits until all that was written is on the device.
func (v *image) sync() error {
	fd, err := unix.Open(v.mnt, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Syncfs(fd)
}

// written is the number of bytes that were written to the device since it was attached.
func (v *image) written(tb testing.TB) int64 {
	data, err := os.ReadFile(filepath.Join("/sys/class/block", filepath.Base(v.dev), "stat"))
	must(tb, err)
	sectors, err := strconv.ParseInt(strings.Fields(string(data))[6], 10, 64)
	must(tb, err)
	return sectors * 512
}
