package loop

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/mounttest"
)

// TestConfigureInSteps walks the way of kernels that do not know LOOP_CONFIGURE.
func TestConfigureInSteps(t *testing.T) {
	mounttest.RequireRoot(t)
	for name, options := range map[string]AttachOptions{
		"writable":  {Label: "in steps", SectorSize: 4096},
		"read-only": {Label: "in steps", ReadOnly: true, DirectIO: true},
		"a part":    {Label: "in steps", Offset: 8192, SizeLimit: 16384},
	} {
		t.Run(name, func(t *testing.T) {
			m := New(Options{})
			path := filepath.Join(t.TempDir(), "disk.img")
			require.NoError(t, os.WriteFile(path, make([]byte, 1<<20), 0o600))
			a := attachment{mode: unix.O_RDWR, options: options}
			if options.ReadOnly {
				a.mode = unix.O_RDONLY
			}
			var err error
			a.file.handle, err = open(path, a.mode)
			require.NoError(t, err)
			defer a.file.close()
			device, attached, err := m.inspector.inspect(stepsToFreeDevice(t, m, a))
			require.NoError(t, err)
			require.True(t, attached)
			t.Cleanup(func() { assert.NoError(t, m.Detach(context.WithoutCancel(t.Context()), device)) })
			assert.Equal(t, path, device.BackingPath)
			assert.Equal(t, "in steps", device.Label)
			assert.Equal(t, options.ReadOnly, device.ReadOnly)
			require.NoError(t, fits(device, options))
		})
	}
}

// stepsToFreeDevice gives the file to a device that is free, and returns its number.
func stepsToFreeDevice(t *testing.T, m *Manager, a attachment) int {
	t.Helper()
	for range maxAttempt {
		number, err := freeNumber()
		require.NoError(t, err)
		err = m.changes.configureExclusively(number, a)
		if err == nil {
			return number
		}
		require.ErrorIs(t, takenOr(err), errTaken)
	}
	t.Fatal("every free device was taken by others")
	return 0
}

// TestNoLookBetweenChangesOfOurOwn: the change after a detachment reads the number of the detachment, for the same device or for
// another one. Another program may change a disk at any time, so the test tries more than once.
func TestNoLookBetweenChangesOfOurOwn(t *testing.T) {
	mounttest.RequireRoot(t)
	m, dir := New(Options{}), t.TempDir()
	file := func(name string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, make([]byte, 1<<20), 0o600))
		return path
	}
	attach := func(name string) Device {
		device, err := m.Attach(t.Context(), file(name), AttachOptions{})
		require.NoError(t, err)
		return device
	}
	opened, err := open(file("three"), unix.O_RDWR)
	require.NoError(t, err)
	defer opened.close()
	f, err := regular(t.Context(), opened)
	require.NoError(t, err)
	for range maxAttempt {
		one, two := attach("one"), attach("two")
		require.NoError(t, m.Detach(t.Context(), two))
		require.NoError(t, m.Detach(t.Context(), one))
		three, node, err := m.changes.attach(t.Context(), attachment{file: f, mode: unix.O_RDWR})
		if errors.Is(err, errTaken) {
			continue
		}
		require.NoError(t, err)
		complete := m.index.complete(three.DiskSeq)
		node.close()
		require.NoError(t, m.Detach(t.Context(), three))
		if complete {
			return
		}
	}
	t.Fatal("every attachment would look at all devices")
}

// TestAForeignDeviceIsNotOpenedExclusively attaches to a device that was free and has another program's file since. The kernel does not mount
// a device that is open exclusively, so its owner must be able to open it with O_EXCL, as a mount does, at any moment.
func TestAForeignDeviceIsNotOpenedExclusively(t *testing.T) {
	mounttest.RequireRoot(t)
	m := New(Options{})
	theirs, err := m.Attach(t.Context(), imageOf(t, "theirs"), AttachOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, m.Detach(context.WithoutCancel(t.Context()), theirs)) })
	f, err := open(imageOf(t, "ours"), unix.O_RDWR)
	require.NoError(t, err)
	defer f.close()
	var owner sync.WaitGroup
	done, refused := make(chan struct{}), 0
	owner.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			claim, err := open(theirs.Path, unix.O_RDONLY|unix.O_EXCL)
			if err != nil {
				refused++
				continue
			}
			claim.close()
		}
	})
	for range 5000 {
		_, _, err := m.changes.attachTo(theirs.Number, attachment{file: backing{handle: f}, mode: unix.O_RDWR})
		require.ErrorIs(t, err, errTaken)
	}
	close(done)
	owner.Wait()
	assert.Zero(t, refused, "the owner could not mount it then")
}

// imageOf makes a file of one MiB.
func imageOf(t *testing.T, name string) string {
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, make([]byte, 1<<20), 0o600))
	return path
}

// TestADeviceStaysExclusiveUntilOthersHaveClosedIt: another process that has opened the device may be about to mount it.
func TestADeviceStaysExclusiveUntilOthersHaveClosedIt(t *testing.T) {
	mounttest.RequireRoot(t)
	m := New(Options{})
	device, err := m.Attach(t.Context(), imageOf(t, "image"), AttachOptions{})
	require.NoError(t, err)
	claim, err := m.openExclusively(t.Context(), device.Number)
	require.NoError(t, err)
	defer claim.close()
	other, err := open(device.Path, unix.O_RDONLY)
	require.NoError(t, err)
	var closing atomic.Bool
	type outcome struct {
		err    error
		closed bool
	}
	result := make(chan outcome, 1)
	go func() {
		err := undoAttach(t.Context(), claim, device)
		result <- outcome{err, closing.Load()}
	}()
	for told := false; !told; {
		found, _, err := inspectNode(other, device.Number)
		require.NoError(t, err)
		told = found.AutoClear
	}
	closing.Store(true)
	other.close()
	got := <-result
	if got.err != nil { // The machine was too busy to close it within a second.
		require.ErrorIs(t, got.err, ErrInUse)
		require.ErrorIs(t, got.err, mount.ErrUncertain)
		return
	}
	assert.True(t, got.closed, "it could be mounted")
}

// TestAFileThatGotADeviceMeanwhileGetsNoSecondOne: another process attaches a file after this one has looked for its device. Then another
// call of this process looks at all devices, and the next change is the attachment: nothing is left to be looked at.
func TestAFileThatGotADeviceMeanwhileGetsNoSecondOne(t *testing.T) {
	mounttest.RequireRoot(t)
	opened, err := open(imageOf(t, "image"), unix.O_RDWR)
	require.NoError(t, err)
	defer opened.close()
	f, err := regular(t.Context(), opened)
	require.NoError(t, err)
	ours := New(Options{})
	require.NoError(t, ours.index.catchUp(t.Context(), 0))
	found, err := ours.index.having(f)
	require.NoError(t, err)
	require.Empty(t, found)

	theirs, err := New(Options{}).Attach(t.Context(), opened.name, AttachOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, ours.Detach(context.WithoutCancel(t.Context()), theirs)) })
	require.NoError(t, ours.index.catchUp(t.Context(), 0))
	ours.index.scanned(math.MaxInt64, nil, nil) // whatever others change on this machine

	device, err := ours.attachFree(t.Context(), attachment{file: f, mode: unix.O_RDWR, sole: true})
	require.NoError(t, err)
	if device.Number != theirs.Number {
		t.Cleanup(func() { assert.NoError(t, ours.Detach(context.WithoutCancel(t.Context()), device)) })
	}
	assert.Equal(t, theirs.Path, device.Path)
}

// asked is a context that calls look at each call of Err. Each step of a call calls Err.
type asked struct {
	context.Context //nolint:containedctx // it is one
	look            func()
}

func (a asked) Err() error {
	a.look()
	return a.Context.Err()
}

func TestADeviceIsExclusiveUntilItIsProvenToBeTheOnlyOne(t *testing.T) {
	mounttest.RequireRoot(t)
	m := New(Options{})
	opened, err := open(imageOf(t, "image"), unix.O_RDWR)
	require.NoError(t, err)
	defer opened.close()
	f, err := regular(t.Context(), opened)
	require.NoError(t, err)
	a := attachment{file: f, mode: unix.O_RDWR}
	device, err := m.attachFree(t.Context(), a)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, m.Detach(context.WithoutCancel(t.Context()), device)) })
	node, err := m.nodes.open(device.Number, a.mode)
	require.NoError(t, err)
	var claims []error
	look := func() {
		claim, err := open(device.Path, unix.O_RDONLY|unix.O_EXCL)
		claims = append(claims, err)
		if err == nil {
			claim.close()
		}
	}
	found, err := m.proveSole(asked{t.Context(), look}, a, device, node)
	require.NoError(t, err)
	assert.Equal(t, device.Number, found.Number)
	require.NotEmpty(t, claims)
	for _, err := range claims {
		require.ErrorIs(t, err, unix.EBUSY)
	}
	look()
	assert.NoError(t, claims[len(claims)-1])
}
