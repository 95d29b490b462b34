package volume

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// statfs measures the filesystem that holds path.
func statfs(path string) (*Metrics, error) {
	var st unix.Statfs_t
	for {
		err := unix.Statfs(path, &st)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil, &fs.PathError{Op: "statfs", Path: path, Err: err}
		}
		return metricsOf(&st), nil
	}
}

// metricsOf reads st. The counts of blocks are in units of Frsize; Bsize is but the best size of a transfer.
func metricsOf(st *unix.Statfs_t) *Metrics {
	unit := uint64(max(st.Frsize, 0))
	if unit == 0 {
		unit = uint64(max(st.Bsize, 0)) // as the kernel did before it knew f_frsize
	}
	m := &Metrics{
		Time:      metav1.Now(),
		Capacity:  blocks(st.Blocks, unit),
		Available: blocks(st.Bavail, unit),
		Used:      blocks(less(st.Blocks, st.Bfree), unit),
	}
	if st.Files > 0 {
		m.Inodes = count(clamp(st.Files))
		m.InodesFree = count(clamp(st.Ffree))
		m.InodesUsed = count(clamp(less(st.Files, st.Ffree)))
	}
	return m
}

func blocks(n, unit uint64) *resource.Quantity {
	if unit > 0 && n > math.MaxInt64/unit {
		return bytes(math.MaxInt64)
	}
	return bytes(clamp(n * unit))
}

// less returns a-b, and zero for a server that says that more is free than there is.
func less(a, b uint64) uint64 { return a - min(a, b) }

func clamp(n uint64) int64 { return int64(min(n, math.MaxInt64)) }

// deviceSize returns where the end of device is.
func deviceSize(device string) (int64, error) {
	// A FIFO would be waited for without O_NONBLOCK, which means nothing to a block device or a file.
	f, err := os.OpenFile(device, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	if mode := info.Mode(); !mode.IsRegular() && (mode&fs.ModeDevice == 0 || mode&fs.ModeCharDevice != 0) {
		return 0, fmt.Errorf("size of %q: not a block device or a file: %w", device, ErrInvalid)
	}
	return f.Seek(0, io.SeekEnd)
}
