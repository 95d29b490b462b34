package loop_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/mount/loop"
	"github.com/volumekit/volumekit/mount/mounttest"
)

// bare attaches and detaches by the necessary system calls only: the lower limit.
func bare(b *testing.B, control int, file string) {
	back, err := unix.Open(file, unix.O_RDWR|unix.O_CLOEXEC, 0)
	require.NoError(b, err)
	for {
		number, err := unix.IoctlRetInt(control, unix.LOOP_CTL_GET_FREE)
		require.NoError(b, err)
		node, err := unix.Open(fmt.Sprintf("/dev/loop%d", number), unix.O_RDWR|unix.O_CLOEXEC, 0)
		require.NoError(b, err)
		err = unix.IoctlLoopConfigure(node, &unix.LoopConfig{Fd: uint32(back)})
		if err == nil {
			_, err = unix.IoctlRetInt(node, unix.LOOP_CLR_FD)
			require.NoError(b, err)
		}
		unix.Close(node)
		if err == nil {
			break
		}
		require.ErrorIs(b, err, unix.EBUSY)
	}
	unix.Close(back)
}

// BenchmarkAttachDetach is one attachment and its detachment, beside others that are attached.
func BenchmarkAttachDetach(b *testing.B) {
	mounttest.RequireRoot(b)
	control, err := unix.Open("/dev/loop-control", unix.O_RDWR|unix.O_CLOEXEC, 0)
	require.NoError(b, err)
	b.Cleanup(func() { unix.Close(control) })
	removeNew(b, control)
	for _, others := range []int{0, 64, 512} {
		b.Run(fmt.Sprintf("others=%d", others), func(b *testing.B) {
			attachOthers(b, others)
			file := filepath.Join(b.TempDir(), "disk.img")
			sparse(b, file)
			b.Run("impl=bare", func(b *testing.B) {
				for b.Loop() {
					bare(b, control, file)
				}
			})
			b.Run("impl=manager", func(b *testing.B) {
				b.ReportAllocs()
				manager := loop.New(loop.Options{})
				pair(b, manager, file) // which looks at all devices
				pair(b, manager, file)
				for b.Loop() {
					pair(b, manager, file)
				}
			})
			b.Run("impl=beside-another-program", func(b *testing.B) {
				manager := loop.New(loop.Options{})
				for b.Loop() {
					b.StopTimer()
					bare(b, control, file)
					b.StartTimer()
					pair(b, manager, file)
				}
			})
			b.Run("impl=new-manager", func(b *testing.B) {
				for b.Loop() {
					pair(b, loop.New(loop.Options{}), file)
				}
			})
		})
	}
}

// removeNew removes at the end the devices that the benchmark has made the kernel add, as far as they are free.
func removeNew(b *testing.B, control int) {
	before, err := filepath.Glob("/sys/block/loop*")
	require.NoError(b, err)
	b.Cleanup(func() {
		after, err := filepath.Glob("/sys/block/loop*")
		require.NoError(b, err)
		for _, path := range after {
			number, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(path), "loop"))
			if err == nil && !slices.Contains(before, path) {
				_ = unix.IoctlSetInt(control, unix.LOOP_CTL_REMOVE, number) // another process may use it
			}
		}
	})
}

func pair(b *testing.B, manager *loop.Manager, file string) {
	device, err := manager.Attach(b.Context(), file, loop.AttachOptions{})
	require.NoError(b, err)
	require.NoError(b, manager.Detach(b.Context(), device))
}

func attachOthers(b *testing.B, count int) {
	manager, dir := loop.New(loop.Options{}), b.TempDir()
	for i := range count {
		file := filepath.Join(dir, fmt.Sprint(i))
		sparse(b, file)
		device, err := manager.Attach(b.Context(), file, loop.AttachOptions{})
		require.NoError(b, err)
		b.Cleanup(func() { require.NoError(b, manager.Detach(context.WithoutCancel(b.Context()), device)) })
	}
}

func sparse(tb testing.TB, path string) {
	require.NoError(tb, os.WriteFile(path, nil, 0o600))
	require.NoError(tb, os.Truncate(path, 16<<20))
}
