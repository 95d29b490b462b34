package mount_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/mount"
)

func fakeWithMount(t *testing.T) *fake.Mounter {
	t.Helper()
	m := fake.NewMounter(fake.MounterOptions{})
	require.NoError(t, m.Mount(t.Context(), mount.Request{Target: "/t", FSType: "tmpfs"}))
	m.ForgetCalls()
	return m
}

func callsOf(m *fake.Mounter) (lines []string) {
	for _, call := range m.Calls() {
		lines = append(lines, call.String())
	}
	return lines
}

func TestUnmountPathUnmountsThenRemoves(t *testing.T) {
	m := fakeWithMount(t)
	require.NoError(t, mount.UnmountPath(t.Context(), m, "/t", mount.UnmountOptions{}))
	assert.Equal(t, []string{"Unmount /t", "RemoveTarget /t"}, callsOf(m))
	_, err := m.Lstat("/t")
	require.ErrorIs(t, err, fs.ErrNotExist)
}

func TestUnmountPathRemovesNothingAfterAFailedUnmount(t *testing.T) {
	m := fakeWithMount(t)
	busy := errors.New("busy")
	m.Inject(fake.MethodUnmount, fake.Fail(busy))
	require.ErrorIs(t, mount.UnmountPath(t.Context(), m, "/t", mount.UnmountOptions{}), busy)
	assert.Equal(t, []string{"Unmount /t: busy"}, callsOf(m))
	is, err := m.IsMountPoint(t.Context(), "/t")
	require.NoError(t, err)
	assert.True(t, is)
}

func TestUnmountPathAsksNoPathWhetherItExists(t *testing.T) {
	// A mount whose source was deleted says ENOENT to everybody who looks at its path.
	m := fakeWithMount(t)
	m.Inject(fake.MethodIsMountPoint, fake.FailN(-1, fs.ErrNotExist))
	require.NoError(t, mount.UnmountPath(t.Context(), m, "/t", mount.UnmountOptions{}))
	table, err := m.List(t.Context())
	require.NoError(t, err)
	assert.Len(t, table, 1, "only the root")
}

func TestUnmountPathThatIsDoneInPartIsUncertain(t *testing.T) {
	m := fakeWithMount(t)
	refused := fmt.Errorf("%w: not now", mount.ErrTransient)
	m.Inject(fake.MethodRemoveTarget, fake.FailN(2, refused))
	err := mount.UnmountPath(t.Context(), m, "/t", mount.UnmountOptions{})
	require.ErrorIs(t, err, refused)
	require.ErrorIs(t, err, mount.ErrUncertain, "it was unmounted")
	err = mount.UnmountPath(t.Context(), m, "/t", mount.UnmountOptions{})
	require.ErrorIs(t, err, refused)
	require.NotErrorIs(t, err, mount.ErrUncertain, "nothing was there and nothing was done")
}

func TestUnmountMountPointKeepsTheTarget(t *testing.T) {
	m := fakeWithMount(t)
	err := mount.UnmountMountPoint(t.Context(), m, "/t", mount.UnmountMountPointOptions{KeepTarget: true})
	require.NoError(t, err)
	assert.Equal(t, []string{"Unmount /t"}, callsOf(m))
}

func TestUnmountPathIsUncertainWhenTheUnmountIsLost(t *testing.T) {
	synctest.Test(t, lostUnmount)
}

func lostUnmount(t *testing.T) {
	m := fakeWithMount(t)
	release := make(chan struct{})
	m.Inject(fake.MethodUnmount, fake.HangUntil(release))
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() { result <- mount.UnmountPath(ctx, m, "/t", mount.UnmountOptions{}) }()
	synctest.Wait()
	cancel()
	err := <-result
	var lost *mount.AbandonedError
	require.ErrorAs(t, err, &lost)
	require.ErrorIs(t, err, mount.ErrUncertain)
	assert.Equal(t, []string{`Unmount /t: ` + err.Error()}, callsOf(m), "nothing is removed")
	close(release)
	<-lost.Done()
}
