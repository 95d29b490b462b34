package loopblock

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestAPackedSuperblockIsTheSame(t *testing.T) {
	super := make([]byte, superblockSize)
	assert.Equal(t, super, unpack(pack(super)))
	for range 200 {
		super[rand.IntN(superblockSize)] = byte(1 + rand.IntN(255))
		assert.Equal(t, super, unpack(pack(super)))
	}
	assert.Len(t, unpack([]byte{255, 1, 2, 3}), superblockSize, "what somebody else has put there")
}
