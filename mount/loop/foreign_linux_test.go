package loop_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/mount/loop"
	"github.com/volumekit/volumekit/mount/mounttest"
)

// foreign is a user of loop devices that knows nothing of this package and takes no lock, such as losetup.
type foreign struct{ t testing.TB }

// attach gives the file to a device, without a look whether it has one.
func (f foreign) attach(path, label string) int {
	back, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	require.NoError(f.t, err)
	defer unix.Close(back)
	config := unix.LoopConfig{Fd: uint32(back)}
	copy(config.Info.File_name[:], label)
	for f.t.Context().Err() == nil {
		number, done := f.try(&config)
		if done {
			return number
		}
	}
	return -1
}

func (f foreign) try(config *unix.LoopConfig) (number int, done bool) {
	control, err := unix.Open("/dev/loop-control", unix.O_RDWR|unix.O_CLOEXEC, 0)
	require.NoError(f.t, err)
	defer unix.Close(control)
	number, err = unix.IoctlRetInt(control, unix.LOOP_CTL_GET_FREE)
	require.NoError(f.t, err)
	node, err := unix.Open(fmt.Sprintf("/dev/loop%d", number), unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, false // another process has it open exclusively
	}
	defer unix.Close(node)
	return number, unix.IoctlLoopConfigure(node, config) == nil
}

func (f foreign) detach(number int) {
	node, err := unix.Open(fmt.Sprintf("/dev/loop%d", number), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	_, _ = unix.IoctlRetInt(node, unix.LOOP_CLR_FD) // another process may have been faster
	unix.Close(node)
}

// knowing returns a Manager that believes to know all devices, and a file.
func knowing(t *testing.T) (*loop.Manager, string) {
	t.Helper()
	mounttest.RequireRoot(t)
	m := loop.New(loop.Options{})
	for range 2 {
		other, err := m.Attach(t.Context(), backing(t), loop.AttachOptions{})
		require.NoError(t, err)
		require.NoError(t, m.Detach(t.Context(), other))
	}
	return m, backing(t)
}

func TestAttachFindsADeviceThatWasAttachedBehindItsBack(t *testing.T) {
	m, path := knowing(t)
	theirs := foreign{t}.attach(path, "theirs")
	device, err := m.Attach(t.Context(), path, loop.AttachOptions{})
	require.NoError(t, err)
	assert.Equal(t, theirs, device.Number)
	assert.Len(t, devicesIn(t, filepath.Dir(path)), 1, "its own was taken off again")
	require.NoError(t, m.Detach(t.Context(), device))
}

func TestAttachRefusesAFileThatOthersHaveTwice(t *testing.T) {
	m, path := knowing(t)
	first, second := foreign{t}.attach(path, "one"), foreign{t}.attach(path, "two")
	_, err := m.Attach(t.Context(), path, loop.AttachOptions{Label: "ours"})
	require.ErrorIs(t, err, loop.ErrInUse)
	both := devicesIn(t, filepath.Dir(path))
	require.Len(t, both, 2, "its own was taken off again")
	assert.ElementsMatch(t, []int{first, second}, []int{both[0].Number, both[1].Number})
	for _, d := range both {
		require.NoError(t, m.Detach(t.Context(), d))
	}
}

func TestAttachTakesOffWhatAKilledProcessLeftBesideAnother(t *testing.T) {
	m, path := knowing(t)
	theirs := foreign{t}.attach(path, "theirs")
	foreign{t}.attach(path, "ours") // as a process leaves it that is killed before it finds theirs
	device, err := m.Attach(t.Context(), path, loop.AttachOptions{Label: "ours"})
	require.NoError(t, err)
	assert.Equal(t, theirs, device.Number)
	assert.Len(t, devicesIn(t, filepath.Dir(path)), 1)
	require.NoError(t, m.Detach(t.Context(), device))
}

func TestAttachKeepsALeftoverThatIsUsed(t *testing.T) {
	m, path := knowing(t)
	foreign{t}.attach(path, "theirs")
	left := foreign{t}.attach(path, "ours")
	holder, err := os.OpenFile(fmt.Sprintf("/dev/loop%d", left), os.O_RDONLY|unix.O_EXCL, 0)
	require.NoError(t, err)
	_, err = m.Attach(t.Context(), path, loop.AttachOptions{Label: "ours"})
	require.ErrorIs(t, err, loop.ErrInUse)
	require.NoError(t, holder.Close())
	both := devicesIn(t, filepath.Dir(path))
	require.Len(t, both, 2)
	for _, d := range both {
		assert.False(t, d.AutoClear)
		require.NoError(t, m.Detach(t.Context(), d))
	}
}

func TestDetachOfADeviceThatHasAnotherFileByNow(t *testing.T) {
	m, path := knowing(t)
	stale, err := m.Attach(t.Context(), path, loop.AttachOptions{})
	require.NoError(t, err)
	foreign{t}.detach(stale.Number)
	require.NoError(t, m.Detach(t.Context(), stale))
	device, err := m.Attach(t.Context(), path, loop.AttachOptions{})
	require.NoError(t, err, "a stale entry is no device")
	require.NoError(t, m.Detach(t.Context(), device))
}

// numbered makes a file that holds a number.
func numbered(t *testing.T, dir string, number uint64) string {
	path := filepath.Join(dir, fmt.Sprint("disk-", number))
	require.NoError(t, os.WriteFile(path, binary.BigEndian.AppendUint64(nil, number), 0o600))
	require.NoError(t, os.Truncate(path, 64<<10))
	return path
}

func numberOn(device int) uint64 {
	file, err := os.Open(fmt.Sprintf("/dev/loop%d", device))
	if err != nil {
		return 0
	}
	defer file.Close()
	data := make([]byte, 8)
	_, _ = file.Read(data) // zeros are the number of nothing
	return binary.BigEndian.Uint64(data)
}

// TestCompetingAttachersNeverShareADevice lets users with and without the lock take devices from under each other's hands.
func TestCompetingAttachersNeverShareADevice(t *testing.T) {
	mounttest.RequireRoot(t)
	const users, rounds = 4, 25
	dir := t.TempDir()
	t.Cleanup(func() { dropLeft(t, dir) })
	var group sync.WaitGroup
	for user := range users {
		ours, theirs := uint64(2*user+1), uint64(2*user+2)
		ourFile, theirFile := numbered(t, dir, ours), numbered(t, dir, theirs)
		m := loop.New(loop.Options{}) // as in a process of its own
		group.Go(func() {
			for range rounds {
				device, err := m.Attach(t.Context(), ourFile, loop.AttachOptions{})
				if !assert.NoError(t, err) || !assert.Equal(t, ours, numberOn(device.Number)) ||
					!assert.NoError(t, m.Detach(t.Context(), device)) {
					return
				}
			}
		})
		group.Go(func() {
			for range rounds {
				device := foreign{t}.attach(theirFile, "")
				assert.Equal(t, theirs, numberOn(device))
				foreign{t}.detach(device)
			}
		})
	}
	group.Wait()
}

// TestAttachAgainstAnotherProgramWithTheSameFile holds that Attach leaves no device of its own when it loses such a race.
func TestAttachAgainstAnotherProgramWithTheSameFile(t *testing.T) {
	mounttest.RequireRoot(t)
	path := backing(t)
	var group sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	group.Go(func() {
		for ctx.Err() == nil {
			foreign{t}.detach(foreign{t}.attach(path, "theirs"))
		}
	})
	m := loop.New(loop.Options{})
	for range 12 {
		device, err := m.Attach(t.Context(), path, loop.AttachOptions{Label: "ours"})
		if err == nil {
			err = m.Detach(t.Context(), device)
		}
		if err != nil && !errors.Is(err, loop.ErrInUse) {
			assert.NoError(t, err)
		}
	}
	cancel()
	group.Wait()
	for _, d := range devicesIn(t, filepath.Dir(path)) {
		assert.Equal(t, "theirs", d.Label)
		require.NoError(t, m.Detach(t.Context(), d))
	}
}
