package loop_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/loop"
	"github.com/volumekit/volumekit/mount/mounttest"
)

// hungWorld is a filesystem whose server can be made to hang, with an image in it, and one that is healthy.
type hungWorld struct {
	fuse          *mounttest.FUSE
	m             *loop.Manager
	image, nearby string
}

func newHungWorld(t *testing.T) hungWorld {
	mounttest.RequireRoot(t)
	w := hungWorld{m: loop.New(loop.Options{}), nearby: backing(t)}
	w.fuse = mounttest.NewFUSE(t, mounttest.FUSEOptions{
		Files: map[string]string{"disk.img": strings.Repeat("\x00", 1<<20)},
	})
	w.image = filepath.Join(w.fuse.Path(), "disk.img")
	t.Cleanup(func() {
		w.fuse.Heal()
		dropLeft(t, w.fuse.Path())
	})
	return w
}

// lost runs a call that hangs in op, and returns its error after its context has ended.
func (w hungWorld) lost(t *testing.T, op mounttest.FUSEOp, call func(context.Context) error) *mount.AbandonedError {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	result := make(chan error, 1)
	go func() { result <- call(ctx) }()
	w.fuse.Await(op)
	cancel()
	err := <-result
	require.ErrorIs(t, err, mount.ErrUncertain)
	require.ErrorIs(t, err, context.Canceled)
	var lost *mount.AbandonedError
	require.ErrorAs(t, err, &lost)
	select {
	case <-lost.Done():
		t.Error("it has not ended")
	default:
	}
	return lost
}

// requireOthersGoOn attaches and detaches a file that lies elsewhere.
func (w hungWorld) requireOthersGoOn(t *testing.T, m *loop.Manager) {
	t.Helper()
	device, err := m.Attach(t.Context(), w.nearby, loop.AttachOptions{})
	require.NoError(t, err)
	found, err := m.Find(t.Context(), w.nearby)
	require.NoError(t, err)
	assert.Equal(t, device, found)
	require.NoError(t, m.Detach(t.Context(), device))
}

func TestAttachOnAHungFilesystem(t *testing.T) {
	for name, op := range map[string]mounttest.FUSEOp{
		"lookup": mounttest.FUSELookup, "open": mounttest.FUSEOpen, "getattr": mounttest.FUSEGetattr,
	} {
		t.Run(name, func(t *testing.T) {
			w := newHungWorld(t)
			w.fuse.Hang(op)
			lost := w.lost(t, op, func(ctx context.Context) error {
				_, err := w.m.Attach(ctx, w.image, loop.AttachOptions{})
				return err
			})
			require.Len(t, w.m.Abandoned(), 1)
			assert.Equal(t, w.image, w.m.Abandoned()[0].Path)
			_, err := w.m.Attach(t.Context(), w.image, loop.AttachOptions{})
			require.ErrorIs(t, err, mount.ErrStuck, "no second call beside a lost one")
			require.ErrorIs(t, err, mount.ErrTransient)
			w.requireOthersGoOn(t, w.m)
			w.fuse.Heal()
			<-lost.Done()
			assert.Empty(t, w.m.Abandoned())
			assert.Empty(t, devicesIn(t, w.fuse.Path()), "a caller who has left gets no device")
			device, err := w.m.Attach(t.Context(), w.image, loop.AttachOptions{})
			require.NoError(t, err)
			require.NoError(t, w.m.Detach(t.Context(), device))
		})
	}
}

func TestADeviceOnAHungFilesystemDelaysNoOther(t *testing.T) {
	w := newHungWorld(t)
	device, err := w.m.Attach(t.Context(), w.image, loop.AttachOptions{})
	require.NoError(t, err)
	w.fuse.Hang(mounttest.FUSEGetattr)

	fresh := loop.New(loop.Options{}) // which knows nothing of the device
	w.requireOthersGoOn(t, fresh)
	w.requireOthersGoOn(t, w.m)
	all, err := fresh.Devices(t.Context())
	require.NoError(t, err)
	shown := false
	for _, d := range all {
		shown = shown || d.Path == device.Path && d.BackingPath == w.image
	}
	assert.True(t, shown, "it is not hidden")

	var lost []*mount.AbandonedError
	for name, call := range map[string]func(context.Context) error{
		"inspect": func(ctx context.Context) error { _, err := w.m.Inspect(ctx, device.Path); return err },
		"resize":  func(ctx context.Context) error { _, err := w.m.Resize(ctx, w.image); return err },
		"find":    func(ctx context.Context) error { _, err := w.m.Find(ctx, w.image); return err },
	} {
		err := untilDeadline(t, call)
		require.ErrorIs(t, err, mount.ErrUncertain, name)
		var l *mount.AbandonedError
		require.ErrorAs(t, err, &l, name)
		lost = append(lost, l)
	}
	w.fuse.Heal()
	for _, l := range lost {
		<-l.Done()
	}
	require.NoError(t, w.m.Detach(t.Context(), device))
	assert.Empty(t, devicesIn(t, w.fuse.Path()))
}

// untilDeadline returns the error of a call that outlives its deadline. One that had no time to begin is made again.
func untilDeadline(t *testing.T, call func(context.Context) error) error {
	for t.Context().Err() == nil {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		err := call(ctx)
		cancel()
		if !errors.Is(err, mount.ErrTransient) {
			return err
		}
	}
	return nil
}

func TestDetachFromAHungFilesystem(t *testing.T) {
	w := newHungWorld(t)
	device, err := w.m.Attach(t.Context(), w.image, loop.AttachOptions{})
	require.NoError(t, err)
	w.fuse.Hang(mounttest.FUSEAny)
	if err := w.m.Detach(t.Context(), device); err != nil {
		requireHeldByAnotherProcess(t, err) // which looks at it, and waits for the server
		w.fuse.Heal()
		require.NoError(t, w.m.Detach(t.Context(), device))
	}
	requireDetached(t, device)
}

func TestDetachFromAHungFilesystemWhileTheDeviceIsOpen(t *testing.T) {
	w := newHungWorld(t)
	device, err := w.m.Attach(t.Context(), w.image, loop.AttachOptions{})
	require.NoError(t, err)
	reader, err := os.Open(device.Path)
	require.NoError(t, err)
	w.fuse.Hang(mounttest.FUSEAny)
	patience, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err = w.m.Detach(patience, device)
	require.ErrorIs(t, err, loop.ErrInUse, "the last close detaches it, without a query of the server")
	require.ErrorIs(t, err, mount.ErrUncertain)
	require.NoError(t, reader.Close())
	w.fuse.Heal()
	require.NoError(t, w.m.Detach(t.Context(), device))
	requireDetached(t, device)
}

func TestDetachFromADeadServer(t *testing.T) {
	w := newHungWorld(t)
	device, err := w.m.Attach(t.Context(), w.image, loop.AttachOptions{})
	require.NoError(t, err)
	w.fuse.Kill()
	w.requireOthersGoOn(t, loop.New(loop.Options{}))
	require.NoError(t, w.m.Detach(t.Context(), device))
	requireDetached(t, device)
	_, err = os.Stat(w.image)
	require.Error(t, err)
}

// requireDetached holds that the attachment has ended. Another program may have given the device another file since.
func requireDetached(t *testing.T, device loop.Device) {
	t.Helper()
	now, err := loops.Inspect(t.Context(), device.Path)
	if errors.Is(err, loop.ErrNotAttached) {
		return
	}
	require.NoError(t, err)
	require.NotEqual(t, device.DiskSeq, now.DiskSeq, "it has its file still")
}

// requireHeldByAnotherProcess holds that a device was told to detach, and that a process that is not this one has it open.
func requireHeldByAnotherProcess(t *testing.T, err error) {
	t.Helper()
	var held *loop.InUseError
	require.ErrorAs(t, err, &held)
	require.True(t, held.Pending)
	require.NotEmpty(t, held.Holders)
	for _, h := range held.Holders {
		assert.NotEqual(t, os.Getpid(), h.PID)
	}
}
