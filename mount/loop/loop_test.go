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

func TestOptionsCheckOfParts(t *testing.T) {
	require.NoError(t, AttachOptions{Offset: 512, SizeLimit: 1024}.check())
	for _, o := range []AttachOptions{
		{Offset: 511}, {SizeLimit: 100}, {Offset: 512, SectorSize: 4096}, {SizeLimit: 512, SectorSize: 1024},
	} {
		require.ErrorIs(t, o.check(), fs.ErrInvalid, "%+v", o)
	}
}
