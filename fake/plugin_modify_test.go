package fake

import (
	"maps"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/volume"
)

func TestAttributesAreCheckedAndKeptByTheStorage(t *testing.T) {
	plugin := initialised(t, PluginOptions{Mounter: NewMounter(MounterOptions{})})
	spec := persistent("data")
	require.NoError(t, plugin.ModifyVolume(t.Context(), spec, map[string]string{ParameterIOPS: "100", ParameterTier: "slow"}))
	for key, value := range map[string]string{ParameterIOPS: "0", ParameterTier: "", "colour": "red"} {
		wrong := map[string]string{ParameterIOPS: "7", ParameterTier: "fast"}
		maps.Copy(wrong, map[string]string{key: value})
		assert.ErrorIs(t, plugin.ModifyVolume(t.Context(), spec, wrong), volume.ErrInfeasible, key)
	}
	assert.Equal(t, map[string]string{ParameterIOPS: "100", ParameterTier: "slow"}, plugin.Backend().Attributes("data"))
}

func TestAModificationFailsAsAFaultSays(t *testing.T) {
	plugin := initialised(t, PluginOptions{Mounter: NewMounter(MounterOptions{})})
	plugin.Inject(MethodModifyVolume, FailAfter(volume.Uncertain(assert.AnError)), SkipWork())
	slow, fast := map[string]string{ParameterTier: "slow"}, map[string]string{ParameterTier: "fast"}
	assert.ErrorIs(t, plugin.ModifyVolume(t.Context(), persistent("data"), slow), volume.ErrUncertain)
	assert.Equal(t, slow, plugin.Backend().Attributes("data"))
	assert.NoError(t, plugin.ModifyVolume(t.Context(), persistent("data"), fast))
	assert.Equal(t, slow, plugin.Backend().Attributes("data"))
}

func TestAnOlderLeaderModifiesNothing(t *testing.T) {
	plugin := initialised(t, PluginOptions{Mounter: NewMounter(MounterOptions{})})
	token := func(term uint64) volume.FencingToken { return volume.FencingToken{Lease: "leader", Term: term} }
	newer := volume.WithFencingToken(t.Context(), token(2))
	require.NoError(t, plugin.ModifyVolume(newer, persistent("data"), map[string]string{ParameterTier: "slow"}))
	older := volume.WithFencingToken(t.Context(), token(1))
	assert.ErrorIs(t, plugin.ModifyVolume(older, persistent("data"), map[string]string{ParameterTier: "fast"}), volume.ErrFenced)
	assert.Equal(t, map[string]string{ParameterTier: "slow"}, plugin.Backend().Attributes("data"))
}
