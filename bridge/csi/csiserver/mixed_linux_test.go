package csiserver_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/volumekit/volumekit/bridge/csi/csiserver"
	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/volume"
)

// What a call that failed has begun is undone before the volume is staged in another way: its record says what there may be.
func TestAFailedStagingIsRepeatedOrUndone(t *testing.T) {
	c, plugin := faked(t, optionsIn(t.TempDir()))
	require.NoError(t, c.create(t.Context(), "data"))
	require.NoError(t, c.attach(t.Context()))
	c.volume.VolumeContext = nil // made by hand: it does not say whether it is for block access
	plugin.Inject(fake.MethodWaitForAttach, fake.Fault{Err: volume.Uncertain(errors.New("late"))})
	c.capability = asDevice(writer)
	codeIs(t, codes.Unavailable, c.stage(t.Context()))
	c.capability = mounted(writer)
	codeIs(t, codes.AlreadyExists, c.stage(t.Context()))
	require.NoError(t, c.unstage(t.Context()))
	require.NoError(t, c.stage(t.Context()))
	require.NoError(t, c.unstage(t.Context()))
	require.NoError(t, c.detach(t.Context()))
	assert.Empty(t, plugin.Backend().Nodes("data"))
	require.NoError(t, c.delete(t.Context()))
}

// A volume's context of another volume shows a pod no data of that one, and detaches nothing below its mounts.
func TestAContextOfAnotherVolumeIsRefused(t *testing.T) {
	options := optionsIn(t.TempDir())
	options.Attach = csiserver.AttachOnNode
	c, plugin := faked(t, options)
	require.NoError(t, c.create(t.Context(), "secret"))
	other := c.volume
	require.NoError(t, c.stage(t.Context()))
	require.NoError(t, c.create(t.Context(), "data"))
	require.NoError(t, c.stage(t.Context()))
	own := c.volume.VolumeContext

	c.volume.VolumeContext = other.VolumeContext
	codeIs(t, codes.AlreadyExists, c.stage(t.Context()))
	codeIs(t, codes.AlreadyExists, c.publish(t.Context(), "/target"))

	c.volume.VolumeContext = own
	require.NoError(t, c.stage(t.Context()))
	require.NoError(t, c.publish(t.Context(), "/target"))
	require.NoError(t, c.unpublish(t.Context(), "/target"))
	require.NoError(t, c.unstage(t.Context()))
	require.NoError(t, c.delete(t.Context()))
	c.volume = other
	codeIs(t, codes.FailedPrecondition, c.delete(t.Context()))
	require.NoError(t, c.unstage(t.Context()))
	require.NoError(t, c.delete(t.Context()))
	assert.Empty(t, plugin.Backend().Handles())
}

// One volume with two ids is attached and staged with one of them: the end of one would take the volume from the other.
func TestOneVolumeHasOneID(t *testing.T) {
	for name, attach := range map[string]csiserver.AttachMode{"OnNode": csiserver.AttachOnNode, "ByController": csiserver.AttachByController} {
		t.Run(name, func(t *testing.T) {
			options := optionsIn(t.TempDir())
			options.Attach = attach
			c, plugin := faked(t, options)
			require.NoError(t, c.create(t.Context(), "data"))
			require.NoError(t, c.attach(t.Context()))
			require.NoError(t, c.stage(t.Context()))
			own := c.volume.VolumeId
			c.volume.VolumeId = "alias"
			if attach == csiserver.AttachByController {
				codeIs(t, codes.FailedPrecondition, c.attach(t.Context()))
			}
			codeIs(t, codes.FailedPrecondition, c.stage(t.Context()))
			require.NoError(t, c.unstage(t.Context()))
			require.NoError(t, c.detach(t.Context()))
			assert.Len(t, plugin.Backend().Nodes("data"), 1)
			c.volume.VolumeId = own
			require.NoError(t, c.publish(t.Context(), "/target"))
		})
	}
}
