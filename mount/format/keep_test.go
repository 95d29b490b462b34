package format

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestAPackedSuperblockIsTheSame(t *testing.T) {
	super := make([]byte, extSuperblockSize)
	assert.Equal(t, super, unpack(pack(super)))
	for range 200 {
		super[rand.IntN(len(super))] = byte(1 + rand.IntN(255))
		packed := pack(super)
		assert.Equal(t, super, unpack(packed))
		assert.Nil(t, unpack(packed[:len(packed)-1]))
	}
	assert.Nil(t, unpack(nil))
	assert.Nil(t, unpack([]byte{255, 1, 2, 3, 4}), "bytes of another program")
}
