package csiserver_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/volumekit/volumekit/bridge/csi/csiserver"
	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/internal/record"
	"github.com/volumekit/volumekit/mount/loop"
	"github.com/volumekit/volumekit/mount/mounttest"
	"github.com/volumekit/volumekit/plugins/loopblock"
	"github.com/volumekit/volumekit/volume"
)

// attachedTo returns the loop devices of the images below dir.
func attachedTo(t *testing.T, dir string) int {
	t.Helper()
	devices, err := loop.New(loop.Options{}).Devices(t.Context())
	require.NoError(t, err)
	attached := 0
	for _, d := range devices {
		if rel, err := filepath.Rel(dir, d.BackingPath); err == nil && filepath.IsLocal(rel) {
			attached++
		}
	}
	return attached
}

// restartWithout stops the server, removes a directory and serves loop-block again.
func (c *caller) restartWithout(t *testing.T, lost string) {
	t.Helper()
	c.stop()
	require.NoError(t, os.RemoveAll(lost))
	c.driver = serve(t, loopblock.New(loopblock.Options{}), c.options)
}

// A RuntimeDir that ends with the driver's container, while its mounts do not: the volume is not detached below its mounts, and the
// calls that end its use find them.
func TestMountsWhoseRecordsAreLost(t *testing.T) {
	mounttest.RequireRoot(t)
	c := newCaller(t, t.TempDir(), mounted(writer))
	a, b := c.target("a"), c.target("b")
	require.NoError(t, c.create(t.Context(), "data"))
	require.NoError(t, c.stage(t.Context()))
	require.NoError(t, c.publish(t.Context(), a))
	require.NoError(t, c.publish(t.Context(), b))
	require.NoError(t, os.WriteFile(filepath.Join(a, "file"), []byte("kept"), 0o600))
	c.restartWithout(t, c.options.RuntimeDir)
	codeIs(t, codes.FailedPrecondition, c.unstage(t.Context()))
	codeIs(t, codes.FailedPrecondition, c.delete(t.Context()))
	assert.Equal(t, 1, attachedTo(t, c.options.RootDir))
	require.NoError(t, c.unpublish(t.Context(), a))
	content, err := os.ReadFile(filepath.Join(b, "file"))
	require.NoError(t, err)
	assert.Equal(t, "kept", string(content))
	codeIs(t, codes.FailedPrecondition, c.unstage(t.Context()))
	assert.Equal(t, 1, attachedTo(t, c.options.RootDir))
	c.end(t, b)
}

// A mount at the target that this driver did not make is left, also when its records are lost.
func TestForeignMountsWhenRecordsAreLost(t *testing.T) {
	mounttest.RequireRoot(t)
	c := newCaller(t, t.TempDir(), mounted(writer))
	a := c.target("a")
	require.NoError(t, c.create(t.Context(), "data"))
	require.NoError(t, c.stage(t.Context()))
	require.NoError(t, c.publish(t.Context(), a))
	require.NoError(t, unix.Mount("foreign", a, "tmpfs", 0, ""))
	c.restartWithout(t, c.options.RuntimeDir)
	codeIs(t, codes.FailedPrecondition, c.unpublish(t.Context(), a))
	assert.Equal(t, 2, mountsAt(t, a))
	require.NoError(t, unix.Unmount(a, 0))
	c.end(t, a)
}

// Without the records of what is staged, and without one of its attachment, the server cannot know whose mount it is.
func TestAStagingWithALostRecordIsKept(t *testing.T) {
	options := optionsIn(t.TempDir())
	mounter := fake.NewMounter(fake.MounterOptions{})
	plugin := fake.NewPlugin(fake.PluginOptions{Mounter: mounter})
	options.Mounter = mounter
	start := func() *caller {
		return &caller{driver: serve(t, plugin, options), capability: mounted(writer), staging: "/staging"}
	}
	c := start()
	require.NoError(t, c.create(t.Context(), "data"))
	require.NoError(t, c.attach(t.Context()))
	require.NoError(t, c.stage(t.Context()))
	c.stop()
	require.NoError(t, os.RemoveAll(options.RuntimeDir))

	next := start()
	next.volume, next.context = c.volume, c.context
	c = next
	codeIs(t, codes.FailedPrecondition, c.unstage(t.Context()))
	require.NoError(t, c.stage(t.Context()), "the caller can stage it again, then there is a record")
	require.NoError(t, c.unstage(t.Context()))
	require.NoError(t, c.detach(t.Context()))
	require.NoError(t, c.unstage(t.Context()), "nothing is mounted any more")
	require.NoError(t, c.delete(t.Context()))
}

// A lost StateDir does not leave a volume attached that is staged here.
func TestAnAttachmentWhoseRecordIsLostEnds(t *testing.T) {
	mounttest.RequireRoot(t)
	c := newCaller(t, t.TempDir(), mounted(writer))
	require.NoError(t, c.create(t.Context(), "data"))
	require.NoError(t, c.stage(t.Context()))
	c.restartWithout(t, c.options.StateDir)
	require.Equal(t, 1, attachedTo(t, c.options.RootDir))
	require.NoError(t, c.unstage(t.Context()))
	assert.Equal(t, 0, attachedTo(t, c.options.RootDir))
}

// The record of the attachment leads to the mount: the volume is not detached below it.
func TestAStagingWithALostRecordEndsFirst(t *testing.T) {
	options := optionsIn(t.TempDir())
	mounter := fake.NewMounter(fake.MounterOptions{})
	plugin := fake.NewPlugin(fake.PluginOptions{Mounter: mounter})
	options.Mounter, options.Attach = mounter, csiserver.AttachOnNode
	c := &caller{driver: serve(t, plugin, options), capability: mounted(writer), staging: "/staging"}
	require.NoError(t, c.create(t.Context(), "data"))
	require.NoError(t, c.stage(t.Context()))
	c.stop()
	require.NoError(t, os.RemoveAll(options.RuntimeDir))

	c.driver = serve(t, plugin, options)
	mounter.Inject(fake.MethodUnmount, fake.Fault{Err: unix.EBUSY})
	codeIs(t, codes.FailedPrecondition, c.unstage(t.Context()))
	assert.Len(t, plugin.Backend().Nodes("data"), 1, "it is still mounted")
	require.NoError(t, c.unstage(t.Context()))
	assert.Empty(t, plugin.Backend().Nodes("data"))
	table, err := mounter.List(t.Context())
	require.NoError(t, err)
	for _, m := range table {
		assert.NotContains(t, m.Path, "plugins")
	}
}

// A device that is published is not detached below its users, and the call that ends its use finds it.
func TestALostDeviceIsUnpublished(t *testing.T) {
	mounttest.RequireRoot(t)
	c := newCaller(t, t.TempDir(), asDevice(writer))
	a, b := c.target("a"), c.target("b")
	require.NoError(t, c.create(t.Context(), "data"))
	require.NoError(t, c.stage(t.Context()))
	require.NoError(t, c.publish(t.Context(), a))
	require.NoError(t, c.publish(t.Context(), b))
	c.restartWithout(t, c.options.RuntimeDir)
	codeIs(t, codes.FailedPrecondition, c.unstage(t.Context()))
	require.NoError(t, c.unpublish(t.Context(), a))
	require.NoError(t, c.unpublish(t.Context(), a))
	codeIs(t, codes.FailedPrecondition, c.unstage(t.Context()))
	assert.Equal(t, 1, attachedTo(t, c.options.RootDir))
	assert.Equal(t, 1, mountsAt(t, b))
	c.end(t, b)
}

// A link of an earlier boot proves nothing, and goes with the next call for its target.
func TestALinkOfAnEarlierBoot(t *testing.T) {
	mounttest.RequireRoot(t)
	c := staged(t, asDevice(writer))
	a := c.target("a")
	require.NoError(t, c.publish(t.Context(), a))
	links := func() []string {
		found, err := filepath.Glob(filepath.Join(c.options.RootDir, "pods/*/volumeDevices/*/data.*"))
		require.NoError(t, err)
		return found
	}
	require.Len(t, links(), 1)
	earlier := filepath.Join(filepath.Dir(links()[0]), "data.earlier")
	require.NoError(t, os.Rename(links()[0], earlier))
	c.restartWithout(t, c.options.RuntimeDir)
	codeIs(t, codes.FailedPrecondition, c.unpublish(t.Context(), a))
	assert.Equal(t, 1, mountsAt(t, a))
	require.NoError(t, unix.Unmount(a, 0))
	require.NoError(t, os.Remove(a))
	require.NoError(t, c.unpublish(t.Context(), a))
	assert.Empty(t, links())
	c.end(t)
}

// Another device at the target is not the volume's: it is left, and so is one that no link leads to.
func TestAForeignDeviceIsLeft(t *testing.T) {
	mounttest.RequireRoot(t)
	c := newCaller(t, t.TempDir(), asDevice(writer))
	a := c.target("a")
	require.NoError(t, c.create(t.Context(), "data"))
	require.NoError(t, c.stage(t.Context()))
	require.NoError(t, c.publish(t.Context(), a))
	c.restartWithout(t, c.options.RuntimeDir)
	require.NoError(t, unix.Mount("/dev/null", a, "", unix.MS_BIND, ""))
	codeIs(t, codes.FailedPrecondition, c.unpublish(t.Context(), a))
	assert.Equal(t, 2, mountsAt(t, a))
	require.NoError(t, unix.Unmount(a, 0))

	links, err := filepath.Glob(filepath.Join(c.options.RootDir, "pods/*/volumeDevices/*/data.*"))
	require.NoError(t, err)
	require.Len(t, links, 1)
	device, err := os.Readlink(links[0])
	require.NoError(t, err)
	require.NoError(t, os.Remove(links[0]))
	codeIs(t, codes.FailedPrecondition, c.unpublish(t.Context(), a))
	assert.Equal(t, 1, mountsAt(t, a))
	require.NoError(t, os.Symlink(device, links[0]))
	c.end(t, a)
}

// A device that the plugin has set up is torn down without a record too, and not below its users.
func TestALostDeviceIsTornDown(t *testing.T) {
	options := optionsIn(t.TempDir())
	options.RootDir += "[a-z]*" // A path is not a pattern.
	mounter := fake.NewMounter(fake.MounterOptions{})
	plugin := fake.NewPlugin(fake.PluginOptions{Mounter: mounter})
	options.Mounter = mounter
	c := &caller{driver: serve(t, plugin, options), capability: asDevice(writer), staging: "/staging"}
	require.NoError(t, c.create(t.Context(), "data"))
	require.NoError(t, c.attach(t.Context()))
	require.NoError(t, c.stage(t.Context()))
	c.stop()
	require.NoError(t, os.RemoveAll(options.RuntimeDir))
	boot, err := record.BootID()
	require.NoError(t, err)
	links := filepath.Join(options.RootDir, "pods/pod/volumeDevices", strings.ReplaceAll(plugin.GetPluginName(), "/", "~"))
	require.NoError(t, os.MkdirAll(links, 0o700))
	link := filepath.Join(links, "data."+boot)
	require.NoError(t, os.Symlink("/dev/fake/data", link))
	require.NoError(t, os.Symlink("/dev/fake/data", filepath.Join(links, "data.earlier")))
	tornDown := func() int {
		return len(slices.DeleteFunc(plugin.Calls(), func(call fake.Call) bool { return call.Method != fake.MethodTearDownDevice }))
	}

	c.driver = serve(t, plugin, options)
	codeIs(t, codes.FailedPrecondition, c.unstage(t.Context()))
	assert.Zero(t, tornDown())
	require.NoError(t, os.Remove(link))
	plugin.Inject(fake.MethodTearDownDevice, fake.Fail(volume.Uncertain(errRefused)))
	codeIs(t, codes.Unavailable, c.unstage(t.Context()))
	require.NoError(t, c.unstage(t.Context()))
	assert.Equal(t, 2, tornDown())
}
