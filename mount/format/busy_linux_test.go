package format

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/mount/loop"
	"github.com/volumekit/volumekit/mount/mounttest"
)

func TestALoopDeviceIsWaitedForAsLongAsItIsWorthIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tries := 0
		until := func(n int) func() error {
			tries = 0
			return func() error {
				if tries++; tries < n {
					return fmt.Errorf("try %d: %w", tries, unix.EBUSY)
				}
				return nil
			}
		}
		require.NoError(t, whileBusy(t.Context(), until(maxBusy)))
		assert.Equal(t, maxBusy, tries)

		err := whileBusy(t.Context(), until(maxBusy+1))
		require.ErrorIs(t, err, ErrInUse)
		require.ErrorIs(t, err, unix.EBUSY)

		require.ErrorIs(t, whileBusy(t.Context(), func() error { tries++; return unix.EPERM }), unix.EPERM)

		ctx, cancel := context.WithTimeout(t.Context(), 3*longPause)
		defer cancel()
		require.ErrorIs(t, whileBusy(ctx, until(maxBusy)), context.DeadlineExceeded)
		assert.Less(t, tries, maxBusy)
	})
}

// alone opens a device with O_EXCL, as a program does that attaches a file to it. letGo closes it after a while.
func alone(t *testing.T, which func() string) (letGo func()) {
	t.Helper()
	fd := -1
	require.Eventually(t, func() bool {
		var err error
		fd, err = unix.Open(which(), unix.O_RDWR|unix.O_EXCL|unix.O_CLOEXEC, 0)
		return err == nil // otherwise another process has it open
	}, time.Minute, time.Millisecond)
	return func() { time.AfterFunc(20*time.Millisecond, func() { _ = unix.Close(fd) }) }
}

// freeDevice is the device that the next one will be told to use.
func freeDevice() string {
	control, err := os.Open("/dev/loop-control")
	if err != nil {
		return ""
	}
	defer control.Close()
	number, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
	if err != nil {
		return ""
	}
	return fmt.Sprintf("/dev/loop%d", number)
}

func TestALoopDeviceThatOthersHaveForAMomentIsWaitedFor(t *testing.T) {
	mounttest.RequireRoot(t)
	path := filepath.Join(t.TempDir(), "disk.img")
	file, err := os.Create(path)
	require.NoError(t, err)
	defer file.Close()
	require.NoError(t, file.Truncate(300*mib))

	alone(t, freeDevice)()
	device, err := attachForNow(t.Context(), file)
	require.NoError(t, err)
	defer device.Close() // where it is not done before

	if err := Make(t.Context(), path, MakeOptions{FSType: "xfs"}); err != nil {
		require.ErrorIs(t, err, ErrNoTool)
		t.Logf("no xfs to mount: %v", err)
		return
	}
	letGo := alone(t, device.Name)
	require.ErrorIs(t, unix.Mount(device.Name(), t.TempDir(), "xfs", 0, ""), unix.EBUSY)
	letGo()
	require.NoError(t, mountForNow(t.Context(), device.Name()))

	// Nothing holds it: no mount was left.
	require.NoError(t, device.Close())
	loops := loop.New(loop.Options{})
	require.Eventually(t, func() bool {
		_, err := loops.FindFile(t.Context(), file)
		return errors.Is(err, loop.ErrNotAttached)
	}, time.Minute, time.Millisecond)
}
