package loop

import (
	"io/fs"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestOptionsCheck(t *testing.T) {
	for _, size := range []uint32{0, 512, 1024, 2048, 4096} {
		require.NoError(t, AttachOptions{SectorSize: size}.check(), "sector size %d", size)
	}
	for _, size := range []uint32{1, 511, 768, 8192} {
		require.ErrorIs(t, AttachOptions{SectorSize: size}.check(), fs.ErrInvalid, "sector size %d", size)
	}
}

func TestWhole(t *testing.T) {
	assert.True(t, Device{}.Whole())
	assert.False(t, Device{Offset: 512}.Whole())
	assert.False(t, Device{SizeLimit: 512}.Whole())
}
