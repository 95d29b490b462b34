package attachdetach

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/internal/cluster"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// Room on a node that comes between an attempt to attach and the wait for room is not missed: who begins to wait looks once more.
func TestRoomThatComesBeforeTheWaitForItIsNotMissed(t *testing.T) {
	host, err := volume.NewHost(volume.HostOptions{RootDir: "/nowhere", NodeName: "controller"})
	require.NoError(t, err)
	c := New(volume.NewVolumePluginMgr(host), store.NewMemory(store.MemoryOptions{}), Options{})
	defer c.dirty.Stop()
	a := attachment{volume: "example.com/disk/a", node: "n"}
	isLookedAtAgain := func() bool {
		if c.dirty.Len() == 0 {
			return false
		}
		_, ok := c.dirty.Get(t.Context())
		return ok
	}
	full := &cluster.AttachLimitError{NodeName: "n"}

	c.failures.roomOn("n")
	require.False(t, isLookedAtAgain(), "no volume waits yet")
	c.waitForRoom(a, operationexecutor.VolumeToAttach{}, full)
	assert.True(t, isLookedAtAgain(), "it has just begun to wait")
	c.waitForRoom(a, operationexecutor.VolumeToAttach{}, full)
	assert.False(t, isLookedAtAgain(), "it waits")
	c.failures.roomOn("n")
	assert.True(t, isLookedAtAgain(), "there is room")
	c.waitForRoom(a, operationexecutor.VolumeToAttach{}, full)
	assert.True(t, isLookedAtAgain(), "others were first, and it has just begun to wait again")
}
