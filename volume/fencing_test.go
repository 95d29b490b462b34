package volume_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/volume"
)

func TestATokenOfAnEarlierTermIsRefused(t *testing.T) {
	newest := volume.FencingToken{Lease: "default/volumes", Term: 3}
	require.ErrorIs(t, volume.FencingToken{Lease: "default/volumes", Term: 2}.Check(newest), volume.ErrFenced)
	require.NoError(t, volume.FencingToken{Lease: "default/volumes", Term: 3}.Check(newest))
	require.NoError(t, volume.FencingToken{Lease: "default/volumes", Term: 4}.Check(newest))
	require.NoError(t, volume.FencingToken{Lease: "default/others", Term: 1}.Check(newest), "it cannot be compared")

	_, ok := volume.FencingTokenFrom(t.Context())
	assert.False(t, ok)
	token, ok := volume.FencingTokenFrom(volume.WithFencingToken(t.Context(), newest))
	assert.True(t, ok)
	assert.Equal(t, newest, token)
}
