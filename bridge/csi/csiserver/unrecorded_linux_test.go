package csiserver_test

import (
	"errors"
	"os"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/volumekit/volumekit/bridge/csi/csiserver"
	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/internal/record"
	"github.com/volumekit/volumekit/mount/mounttest"
	"github.com/volumekit/volumekit/plugins/loopblock"
	"github.com/volumekit/volumekit/volume"
)

// kept is a fake plugin whose storage outlives its server.
type kept struct {
	*caller
	plugin  *fake.Plugin
	options csiserver.Options
}

// attachedOnce returns a server that has attached a volume.
func attachedOnce(t *testing.T) *kept {
	t.Helper()
	options := optionsIn(t.TempDir())
	mounter := fake.NewMounter(fake.MounterOptions{})
	options.Mounter = mounter
	k := &kept{plugin: fake.NewPlugin(fake.PluginOptions{Mounter: mounter}), options: options}
	k.caller = &caller{driver: serve(t, k.plugin, options), capability: mounted(writer), staging: "/staging"}
	require.NoError(t, k.create(t.Context(), "data"))
	require.NoError(t, k.attach(t.Context()))
	return k
}

// restartAfter stops the server, changes its directories and serves the plugin again.
func (k *kept) restartAfter(t *testing.T, change func()) {
	t.Helper()
	k.stop()
	change()
	k.driver = serve(t, k.plugin, k.options)
}

func (k *kept) loseState(t *testing.T) {
	t.Helper()
	k.restartAfter(t, func() { require.NoError(t, os.RemoveAll(k.options.StateDir)) })
}

func (k *kept) loseAttachments(t *testing.T) {
	t.Helper()
	k.restartAfter(t, func() {
		dir, err := record.Open(k.options.StateDir, record.Options{Sync: true})
		require.NoError(t, err)
		records, _, err := dir.Load()
		require.NoError(t, err)
		for _, r := range records {
			if r.Key[0] == 'a' {
				require.NoError(t, dir.Remove(r.Key))
			}
		}
		require.NoError(t, dir.Close())
	})
}

// detaches returns how often the plugin was to detach.
func (k *kept) detaches() int {
	count := 0
	for _, call := range k.plugin.Calls() {
		if call.Method == fake.MethodDetach {
			count++
		}
	}
	return count
}

func (k *kept) detachFromAll(t *testing.T) error {
	t.Helper()
	_, err := k.control.ControllerUnpublishVolume(t.Context(), &csi.ControllerUnpublishVolumeRequest{VolumeId: "data"})
	return err
}

// A StateDir that is lost or damaged does not make an attached volume count as detached: another node would get it too. The plugin knows.
func TestALostAttachmentEnds(t *testing.T) {
	for name, lose := range map[string]func(*kept, *testing.T){
		"all": (*kept).loseState, "one": (*kept).loseAttachments,
	} {
		t.Run(name, func(t *testing.T) {
			k := attachedOnce(t)
			lose(k, t)
			require.Len(t, k.plugin.Backend().Nodes("data"), 1)
			k.plugin.Inject(fake.MethodVolumesAreAttached, fake.Fail(errors.New("the storage is away")))
			codeIs(t, codes.Unavailable, k.detach(t.Context()))
			require.NoError(t, k.detach(t.Context()))
			assert.Empty(t, k.plugin.Backend().Nodes("data"))
			detached := k.detaches()
			require.NoError(t, k.detach(t.Context()), "a repeated call")
			assert.Equal(t, detached, k.detaches())
		})
		t.Run(name+" nodes", func(t *testing.T) {
			k := attachedOnce(t)
			lose(k, t)
			k.plugin.Inject(fake.MethodListAttachments, fake.Fail(errors.New("the storage is away")))
			codeIs(t, codes.Unavailable, k.detachFromAll(t))
			require.NoError(t, k.detachFromAll(t))
			assert.Empty(t, k.plugin.Backend().Nodes("data"))
			require.NoError(t, k.detachFromAll(t))
		})
	}
}

// A volume of which nobody says anything is not reported as detached, unless this server has made it and detaches it again.
func TestAnUnknownVolumeIsNotDetached(t *testing.T) {
	k := attachedOnce(t)
	k.loseState(t)
	unsaid := fake.SkipWork()
	k.plugin.Inject(fake.MethodVolumesAreAttached, unsaid)
	codeIs(t, codes.NotFound, k.detach(t.Context()))
	assert.Len(t, k.plugin.Backend().Nodes("data"), 1)

	k = attachedOnce(t)
	k.loseAttachments(t)
	k.plugin.Inject(fake.MethodVolumesAreAttached, unsaid)
	require.NoError(t, k.detach(t.Context()))
	assert.Empty(t, k.plugin.Backend().Nodes("data"))

	k.plugin.Inject(fake.MethodVolumesAreAttached, fake.Fail(volume.ErrInfeasible))
	require.NoError(t, k.detach(t.Context()), "a node that never has a volume")
}

// A volume that this server has deleted was attached nowhere.
func TestADeletedVolumeIsDetached(t *testing.T) {
	k := attachedOnce(t)
	require.NoError(t, k.detach(t.Context()))
	require.NoError(t, k.delete(t.Context()))
	k.plugin.Inject(fake.MethodVolumesAreAttached, fake.SkipWork())
	require.NoError(t, k.detach(t.Context()))
}

// What is staged on this node is not detached below its mounts, with a record or without.
func TestALostAttachmentIsStaged(t *testing.T) {
	k := attachedOnce(t)
	require.NoError(t, k.stage(t.Context()))
	k.loseState(t)
	codeIs(t, codes.FailedPrecondition, k.detach(t.Context()))
	assert.Len(t, k.plugin.Backend().Nodes("data"), 1)
	require.NoError(t, k.unstage(t.Context()))
	require.NoError(t, k.detach(t.Context()))
	assert.Empty(t, k.plugin.Backend().Nodes("data"))
}

// A volume whose staging is on no record is not detached below its mounts, on a server that has both services.
func TestALostStagingIsNotDetached(t *testing.T) {
	k := attachedOnce(t)
	require.NoError(t, k.stage(t.Context()))
	k.restartAfter(t, func() { require.NoError(t, os.RemoveAll(k.options.RuntimeDir)) })
	codeIs(t, codes.FailedPrecondition, k.detach(t.Context()))
	assert.Len(t, k.plugin.Backend().Nodes("data"), 1)
	require.NoError(t, k.stage(t.Context()), "it is on record again")
	require.NoError(t, k.unstage(t.Context()))
	require.NoError(t, k.detach(t.Context()))
	assert.Empty(t, k.plugin.Backend().Nodes("data"))
}

// The same holds for a device that is published.
func TestALostDeviceIsNotDetached(t *testing.T) {
	mounttest.RequireRoot(t)
	c := &caller{driver: serve(t, loopblock.New(loopblock.Options{}), optionsIn(t.TempDir())), capability: asDevice(writer)}
	c.staging = c.target("staging")
	a := c.target("a")
	require.NoError(t, c.create(t.Context(), "data"))
	require.NoError(t, c.attach(t.Context()))
	require.NoError(t, c.stage(t.Context()))
	require.NoError(t, c.publish(t.Context(), a))
	c.restartWithout(t, c.options.RuntimeDir)
	codeIs(t, codes.FailedPrecondition, c.detach(t.Context()))
	assert.Equal(t, 1, attachedTo(t, c.options.RootDir))
	c.end(t, a)
}
