package changes

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/volume"
)

func TestAHubWakesThoseWhoWaitForThePodAndThoseWhoWaitForAny(t *testing.T) {
	var b Hub
	b.Notify("a")
	one, cancelOne := b.Subscribe("a")
	two, cancelTwo := b.Subscribe("a")
	other, cancelOther := b.Subscribe("b")
	every, cancelEvery := b.Subscribe(AnyPod)
	b.Notify("a")
	b.Notify("a")
	for _, c := range []<-chan struct{}{one, two, every} {
		<-c
		assert.Empty(t, c, "several changes are one token")
	}
	assert.Empty(t, other)
	for _, cancel := range []func(){cancelOne, cancelTwo, cancelOther, cancelEvery} {
		cancel()
	}
	assert.Empty(t, b.waiting)
	b.Notify(volume.UniquePodName("a"))
	require.Empty(t, one)
}
