package csiserver_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/volumekit/volumekit/bridge/csi/csiserver"
	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/internal/record"
	"github.com/volumekit/volumekit/mount/mounttest"
)

// fill fills the filesystem of a directory, and returns what frees it.
func fill(t *testing.T, dir string) (free func()) {
	t.Helper()
	path := filepath.Join(dir, "filler")
	file, err := os.Create(path)
	require.NoError(t, err)
	for err == nil {
		_, err = file.Write(make([]byte, 4096))
	}
	require.ErrorIs(t, err, unix.ENOSPC)
	require.NoError(t, file.Close())
	return func() { require.NoError(t, os.Remove(path)) }
}

// onSmallDisks returns options whose directories of records are small filesystems.
func onSmallDisks(t *testing.T) csiserver.Options {
	t.Helper()
	options := optionsIn(t.TempDir())
	for _, dir := range []string{options.StateDir, options.RuntimeDir} {
		require.NoError(t, os.Mkdir(dir, 0o700))
		require.NoError(t, unix.Mount("records", dir, "tmpfs", 0, "size=256k,mode=700"))
		t.Cleanup(func() { assert.NoError(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	}
	return options
}

// Volumes are unpublished, unstaged, detached and deleted on a disk that is full.
func TestVolumesEndOnFullDisks(t *testing.T) {
	mounttest.RequireMounts(t)
	options := onSmallDisks(t)
	c, plugin := faked(t, options)
	var all []*caller
	for i := range 10 {
		own := &caller{driver: c.driver, capability: c.capability, staging: "/staging"}
		require.NoError(t, own.create(t.Context(), numbered(i)))
		require.NoError(t, own.attach(t.Context()))
		require.NoError(t, own.stage(t.Context()))
		require.NoError(t, own.publish(t.Context(), "/target/"+numbered(i)))
		all = append(all, own)
	}
	fill(t, options.StateDir)
	fill(t, options.RuntimeDir)
	for i, own := range all {
		require.NoError(t, own.unpublish(t.Context(), "/target/"+numbered(i)))
		require.NoError(t, own.unstage(t.Context()))
		require.NoError(t, own.detach(t.Context()))
		require.NoError(t, own.delete(t.Context()))
	}
	assert.Empty(t, plugin.Backend().Handles())
}

// On a full disk of records nothing is begun that could not be recorded. What is on record can be ended there, and the calls after it are whole.
func TestFullDisksOfRecords(t *testing.T) {
	mounttest.RequireMounts(t)
	options := onSmallDisks(t)
	c, plugin := faked(t, options)
	require.NoError(t, c.create(t.Context(), "old"))
	require.NoError(t, c.attach(t.Context()))
	require.NoError(t, c.stage(t.Context()))
	require.NoError(t, c.publish(t.Context(), "/target/old"))
	other := &caller{driver: c.driver, capability: c.capability, staging: "/staging"}
	require.NoError(t, other.create(t.Context(), "other"))
	calls := func(method fake.Method) int {
		return len(slices.DeleteFunc(plugin.Calls(), func(call fake.Call) bool { return call.Method != method }))
	}
	// refused makes calls until the room that was reserved for records is used up. The plugin is called only for what is on record.
	refused := func(dir string, method fake.Method, call func(i int) error) {
		t.Helper()
		for i := range 2000 {
			before := calls(method)
			err := call(i)
			if err == nil {
				continue
			}
			codeIs(t, codes.Unavailable, err)
			require.ErrorContains(t, err, dir)
			require.ErrorContains(t, err, "free space")
			recorded, err := record.Peek(dir)
			require.NoError(t, err)
			assert.Equal(t, strings.Contains(fmt.Sprint(recorded), numbered(i)), calls(method) > before)
			return
		}
		require.Fail(t, "the disk is not full")
	}
	create := func(i int) error {
		_, err := c.control.CreateVolume(t.Context(), &csi.CreateVolumeRequest{Name: numbered(i), VolumeCapabilities: []*csi.VolumeCapability{c.capability}})
		return err
	}
	freeState := fill(t, options.StateDir)
	refused(options.StateDir, fake.MethodProvision, create)
	codeIs(t, codes.Unavailable, other.attach(t.Context()))
	assert.Empty(t, plugin.Backend().Nodes("other"))

	freeRuntime := fill(t, options.RuntimeDir)
	refused(options.RuntimeDir, fake.MethodSetUp, func(i int) error { return c.publish(t.Context(), "/target/"+numbered(i)) })
	require.NoError(t, c.unpublish(t.Context(), "/target/old"))
	freeState()
	require.NoError(t, other.attach(t.Context()))
	freeRuntime()
	for i := range 2000 {
		require.NoError(t, c.unpublish(t.Context(), "/target/"+numbered(i)))
	}
	require.NoError(t, c.unstage(t.Context()))
	require.NoError(t, c.detach(t.Context()))
	require.NoError(t, c.delete(t.Context()))
	require.NoError(t, other.stage(t.Context()))
	require.NoError(t, other.unstage(t.Context()))
	require.NoError(t, other.detach(t.Context()))
	assert.Empty(t, plugin.Backend().Nodes("other"))
}

func numbered(i int) string { return fmt.Sprintf("volume-%d-", i) }
