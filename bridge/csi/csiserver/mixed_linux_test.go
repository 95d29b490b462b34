package csiserver_test

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
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

// withoutID returns a context as earlier versions have made it, which names no volume.
func withoutID(t *testing.T, context map[string]string) map[string]string {
	t.Helper()
	changed := map[string]string{}
	for key, text := range context {
		var values map[string]json.RawMessage
		require.NoError(t, json.Unmarshal([]byte(text), &values))
		delete(values, "id")
		rest, err := json.Marshal(values)
		require.NoError(t, err)
		changed[key] = string(rest)
	}
	return changed
}

// A controller that confuses two volumes sends the context of one with the id of the other. Neither is staged, published or attached so,
// also where nothing is on record of either.
func TestAContextNamesItsVolume(t *testing.T) {
	for name, attach := range map[string]csiserver.AttachMode{"OnNode": csiserver.AttachOnNode, "ByController": csiserver.AttachByController} {
		t.Run(name, func(t *testing.T) {
			options := optionsIn(t.TempDir())
			options.Attach = attach
			c, plugin := faked(t, options)
			require.NoError(t, c.create(t.Context(), "secret"))
			other := c.volume
			c.volume = &csi.Volume{VolumeId: "data", VolumeContext: other.VolumeContext}
			if attach == csiserver.AttachByController {
				codeIs(t, codes.InvalidArgument, c.attach(t.Context()))
			}
			codeIs(t, codes.InvalidArgument, c.stage(t.Context()))
			codeIs(t, codes.InvalidArgument, c.publish(t.Context(), "/target"))
			assert.Empty(t, plugin.Backend().Nodes("secret"))
			c.volume = other
			require.NoError(t, c.attach(t.Context()))
			require.NoError(t, c.stage(t.Context()))
		})
	}
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
	codeIs(t, codes.InvalidArgument, c.stage(t.Context()))
	c.volume.VolumeContext = withoutID(t, other.VolumeContext)
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
			c.volume.VolumeId, c.volume.VolumeContext = "alias", withoutID(t, c.volume.VolumeContext)
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
