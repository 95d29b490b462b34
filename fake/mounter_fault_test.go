package fake_test

import (
	"context"
	"errors"
	"io/fs"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/volume"
)

func tmpfs(target string, options ...string) mount.Request {
	return mount.Request{Source: "memory", Target: target, FSType: "tmpfs", Options: options}
}

func isMounted(t *testing.T, m *fake.Mounter, path string) bool {
	t.Helper()
	is, err := m.IsMountPoint(t.Context(), path)
	if errors.Is(err, fs.ErrNotExist) {
		return false
	}
	require.NoError(t, err)
	return is
}

func TestMounterFailsAsTold(t *testing.T) {
	m := fake.NewMounter(fake.MounterOptions{})
	m.Inject(fake.MethodMount, fake.FailN(2, syscall.EIO), fake.FailAfter(mount.ErrUncertain), fake.SkipWork())
	for range 2 {
		require.ErrorIs(t, m.Mount(t.Context(), tmpfs("/a")), syscall.EIO)
		assert.False(t, isMounted(t, m, "/a"))
	}
	require.ErrorIs(t, m.Mount(t.Context(), tmpfs("/a")), mount.ErrUncertain)
	assert.True(t, isMounted(t, m, "/a"), "it reports failure after success")
	require.NoError(t, m.Mount(t.Context(), tmpfs("/b")))
	assert.False(t, isMounted(t, m, "/b"), "it pretends")
	require.NoError(t, m.Mount(t.Context(), tmpfs("/b")))
	assert.True(t, isMounted(t, m, "/b"))
}

// The class of a failure is part of the fault, and what is under the mount is as the class says.
func TestMounterFailsInTheClassThatItIsTold(t *testing.T) {
	m := fake.NewMounter(fake.MounterOptions{})
	m.Inject(fake.MethodMount,
		fake.Fail(volume.Transient(syscall.EAGAIN)), fake.FailAfter(volume.Uncertain(syscall.EIO)), fake.Fail(syscall.EINVAL))
	for _, c := range []struct {
		cause                error
		transient, uncertain bool
		mounted              bool
	}{{syscall.EAGAIN, true, false, false}, {syscall.EIO, false, true, true}, {syscall.EINVAL, false, false, true}} {
		err := m.Mount(t.Context(), tmpfs("/a"))
		require.ErrorIs(t, err, c.cause)
		assert.Equal(t, c.transient, errors.Is(err, volume.ErrTransient), c.cause)
		assert.Equal(t, c.uncertain, errors.Is(err, volume.ErrUncertain), c.cause)
		assert.Equal(t, c.transient, errors.Is(err, mount.ErrTransient), "mount's own word for it")
		assert.Equal(t, c.mounted, isMounted(t, m, "/a"), "it is once the work was done")
	}
}

func TestMounterPanicsAsTold(t *testing.T) {
	m := fake.NewMounter(fake.MounterOptions{})
	m.Inject(fake.MethodMount, fake.PanicWith("planned"))
	m.Inject(fake.MethodLookup, fake.PanicWith("planned"))
	assert.PanicsWithValue(t, "planned", func() { _ = m.Mount(t.Context(), tmpfs("/a")) })
	assert.PanicsWithValue(t, "planned", func() { _, _ = m.Lookup(t.Context(), "/a") })
	for _, call := range m.Calls() {
		assert.True(t, call.Ended, call.String())
	}
	require.NoError(t, m.Mount(t.Context(), tmpfs("/a")), "the path is free again")
	_, err := m.Lookup(t.Context(), "/a")
	require.NoError(t, err)
}

func TestMounterLogReadsAsASequence(t *testing.T) {
	m := fake.NewMounter(fake.MounterOptions{})
	request := tmpfs("/a", "ro")
	request.Sensitive = []string{"size=12345"}
	require.NoError(t, m.Mount(t.Context(), request))
	require.NoError(t, m.Mount(t.Context(), mount.Request{Source: "/a", Target: "/b", Options: []string{"bind"}}))
	require.Error(t, m.Mount(t.Context(), tmpfs("relative")))
	_, err := m.GetMountRefs(t.Context(), "/a")
	require.NoError(t, err)
	require.NoError(t, mount.UnmountPath(t.Context(), m, "/b", mount.UnmountOptions{}))
	require.Error(t, m.Unmount(t.Context(), "/b", mount.UnmountOptions{}))
	var lines []string
	for _, call := range m.Calls() {
		lines = append(lines, call.String())
		assert.True(t, call.Ended)
	}
	assert.Equal(t, []string{
		"Mount tmpfs memory at /a (ro)",
		"Mount /a at /b (bind)",
		`Mount tmpfs memory at relative: target "relative" is not an absolute path: invalid mount request`,
		"GetMountRefs /a",
		"Unmount /b",
		"RemoveTarget /b",
		`Unmount /b: unmounting "/b": not mounted`,
	}, lines)
	m.ForgetCalls()
	assert.Empty(t, m.Calls())
}

func TestMounterHangsUntilReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := fake.NewMounter(fake.MounterOptions{})
		release := make(chan struct{})
		m.Inject(fake.MethodMount, fake.HangUntil(release))
		result := make(chan error, 1)
		go func() { result <- m.Mount(t.Context(), tmpfs("/a")) }()
		synctest.Wait()
		assert.Empty(t, result)
		assert.Empty(t, m.Abandoned(), "its caller waits")
		assert.Equal(t, "Mount tmpfs memory at /a (running)", m.Calls()[0].String())
		close(release)
		require.NoError(t, <-result)
		assert.True(t, isMounted(t, m, "/a"))
	})
}

func TestMounterLosesCallsAsTheKernelDoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := fake.NewMounter(fake.MounterOptions{})
		release := make(chan struct{})
		m.Inject(fake.MethodMount, fake.HangUntil(release))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := m.Mount(ctx, tmpfs("/a"))
		var lost *mount.AbandonedError
		require.ErrorAs(t, err, &lost)
		require.ErrorIs(t, err, mount.ErrUncertain)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		assert.Equal(t, []string{"/a"}, m.Abandoned())

		err = m.Unmount(t.Context(), "/a", mount.UnmountOptions{})
		require.ErrorIs(t, err, mount.ErrStuck)
		require.ErrorIs(t, err, mount.ErrTransient)
		require.NoError(t, m.Mount(t.Context(), tmpfs("/b")), "another path")
		assert.False(t, isMounted(t, m, "/a"))

		close(release)
		<-lost.Done()
		assert.True(t, isMounted(t, m, "/a"), "the abandoned call has had its effect")
		assert.Empty(t, m.Abandoned())
		require.NoError(t, m.Unmount(t.Context(), "/a", mount.UnmountOptions{}))
	})
}

func TestMounterLooksCanHangToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := fake.NewMounter(fake.MounterOptions{})
		m.Inject(fake.MethodIsMountPoint, fake.HangUntil(make(chan struct{})))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		is, err := m.IsMountPoint(ctx, "/")
		require.ErrorIs(t, err, mount.ErrUncertain)
		var lost *mount.AbandonedError
		require.ErrorAs(t, err, &lost)
		assert.False(t, is)
	})
}

func TestMounterAwaitsCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := fake.NewMounter(fake.MounterOptions{})
		ctx, cancel := context.WithCancel(t.Context())
		result := make(chan error, 1)
		go func() { result <- m.AwaitCalls(ctx, fake.MethodMount, 2) }()
		for _, path := range []string{"/a", "relative"} {
			_ = m.Mount(t.Context(), tmpfs(path))
		}
		require.NoError(t, <-result)
		cancel()
		require.ErrorIs(t, m.AwaitCalls(ctx, fake.MethodMount, 3), context.Canceled)
	})
}

func TestMounterIsBusyWhileHeld(t *testing.T) {
	m := fake.NewMounter(fake.MounterOptions{})
	require.NoError(t, m.Mount(t.Context(), tmpfs("/a")))
	release, err := m.Hold("/a")
	require.NoError(t, err)
	require.ErrorIs(t, m.Unmount(t.Context(), "/a", mount.UnmountOptions{}), syscall.EBUSY)
	release()
	release()
	require.NoError(t, m.Unmount(t.Context(), "/a", mount.UnmountOptions{}))
	require.NoError(t, m.Mount(t.Context(), tmpfs("/a")))
	_, err = m.Hold("/a")
	require.NoError(t, err)
	require.NoError(t, m.Unmount(t.Context(), "/a", mount.UnmountOptions{Lazy: true}))
}

func TestMounterIsBusyWhileACopyIsHeld(t *testing.T) {
	m := fake.NewMounter(fake.MounterOptions{})
	require.NoError(t, m.Mount(t.Context(), tmpfs("/a", "shared")))
	require.NoError(t, m.Mount(t.Context(), mount.Request{Source: "/a", Target: "/b", Options: []string{"bind", "slave"}}))
	require.NoError(t, m.Mount(t.Context(), tmpfs("/a/sub")))
	release, err := m.Hold("/b/sub")
	require.NoError(t, err)
	require.ErrorIs(t, m.Unmount(t.Context(), "/a/sub", mount.UnmountOptions{}), syscall.EBUSY)
	assert.True(t, isMounted(t, m, "/b/sub"))
	require.NoError(t, m.Mount(t.Context(), tmpfs("/b/sub/inner")))
	require.NoError(t, m.Unmount(t.Context(), "/a/sub", mount.UnmountOptions{}), "a copy that stays is not asked")
	assert.True(t, isMounted(t, m, "/b/sub"))
	require.NoError(t, m.Unmount(t.Context(), "/b/sub/inner", mount.UnmountOptions{}))
	release()
	require.NoError(t, m.Unmount(t.Context(), "/b/sub", mount.UnmountOptions{}))
}

func TestMounterKeepsWhatADeviceHolds(t *testing.T) {
	m := fake.NewMounter(fake.MounterOptions{})
	ext4 := mount.Request{Source: "/dev/loop0", Target: "/a", FSType: "ext4", Options: []string{"ro", "discard"}}
	require.NoError(t, m.Mount(t.Context(), ext4))
	require.ErrorIs(t, m.WriteFile("/a/f", nil, 0o600), syscall.EROFS)
	require.NoError(t, m.Unmount(t.Context(), "/a", mount.UnmountOptions{}))
	ext4.Options = nil
	require.NoError(t, m.Mount(t.Context(), ext4))
	require.NoError(t, m.WriteFile("/a/f", []byte("kept"), 0o600))
	require.NoError(t, m.Unmount(t.Context(), "/a", mount.UnmountOptions{}))
	ext4.Target = "/b"
	require.NoError(t, m.Mount(t.Context(), ext4))
	content, err := m.ReadFile("/b/f")
	require.NoError(t, err)
	assert.Equal(t, "kept", string(content))
	only := fake.NewMounter(fake.MounterOptions{FSTypes: []string{"xfs"}})
	require.ErrorIs(t, only.Mount(t.Context(), ext4), mount.ErrUnsupported)
}

func TestMounterFiles(t *testing.T) {
	m := fake.NewMounter(fake.MounterOptions{})
	require.NoError(t, m.MkdirAll("/a/b/c", 0o750))
	require.NoError(t, m.MkdirAll("/a/b/c", 0o750))
	require.ErrorIs(t, m.Mkdir("/a", 0o750), fs.ErrExist)
	require.NoError(t, m.WriteFile("/a/f", []byte("12345"), 0o640))
	require.ErrorIs(t, m.MkdirAll("/a/f/d", 0o750), syscall.ENOTDIR)
	require.ErrorIs(t, m.WriteFile("/a/b", nil, 0o640), syscall.EISDIR)
	require.ErrorIs(t, m.WriteFile("/none/f", nil, 0o640), fs.ErrNotExist)
	require.ErrorIs(t, m.Remove("/a/b"), syscall.ENOTEMPTY)
	require.NoError(t, m.Symlink("../f", "/a/b/up"))
	require.NoError(t, m.Symlink("loop", "/loop"))
	content, err := m.ReadFile("/a/b/up")
	require.NoError(t, err)
	assert.Equal(t, "12345", string(content))
	_, err = m.ReadFile("/loop")
	require.ErrorIs(t, err, syscall.ELOOP)
	_, err = m.ReadFile("/a")
	require.ErrorIs(t, err, syscall.EISDIR)
	info, err := m.Stat("/a/f")
	require.NoError(t, err)
	assert.Equal(t, []any{"f", int64(5), fs.FileMode(0o640), false}, []any{info.Name(), info.Size(), info.Mode(), info.IsDir()})
	entries, err := m.ReadDir("/a")
	require.NoError(t, err)
	require.Len(t, entries, 2)
	assert.Equal(t, "b", entries[0].Name())
	assert.True(t, entries[0].IsDir())
	_, err = m.ReadDir("/a/f")
	require.ErrorIs(t, err, syscall.ENOTDIR)
	var pathError *fs.PathError
	require.ErrorAs(t, err, &pathError)
	assert.Equal(t, "/a/f", pathError.Path)
}

func TestMounterMayBeUsedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := fake.NewMounter(fake.MounterOptions{})
		done := make(chan error, 8)
		for i := range cap(done) {
			path := string(rune('a' + i))
			go func() {
				for range 50 {
					if err := m.Mount(t.Context(), tmpfs("/"+path)); err != nil {
						done <- err
						return
					}
					if err := mount.UnmountPath(t.Context(), m, "/"+path, mount.UnmountOptions{}); err != nil {
						done <- err
						return
					}
				}
				done <- nil
			}()
		}
		for range cap(done) {
			require.NoError(t, <-done)
		}
		table, err := m.List(t.Context())
		require.NoError(t, err)
		assert.Len(t, table, 1)
	})
}
