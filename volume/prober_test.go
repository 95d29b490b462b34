package volume_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/volume"
)

// told is a prober that tells each thing once.
type told struct {
	events []volume.ProbeEvent
	err    error
	panics any
}

func (p *told) Probe(context.Context) ([]volume.ProbeEvent, error) {
	if p.panics != nil {
		panic(p.panics)
	}
	return p.events, p.err
}

func probedPlugin(name string) *fake.Plugin {
	return fake.NewPlugin(fake.PluginOptions{Name: name, Mounter: fake.NewMounter(fake.MounterOptions{})})
}

func newRegistry(t *testing.T, plugins ...volume.VolumePlugin) *volume.VolumePluginMgr {
	t.Helper()
	host, err := volume.NewHost(volume.HostOptions{RootDir: "/var/lib/agent", NodeName: "node-1"})
	require.NoError(t, err)
	m := volume.NewVolumePluginMgr(host)
	require.NoError(t, m.InitPlugins(t.Context(), plugins...))
	return m
}

func TestProbedPluginsComeChangeAndGo(t *testing.T) {
	m := newRegistry(t, probedPlugin("example.com/own"))
	first, second := probedPlugin("example.com/a"), probedPlugin("example.com/a")
	changed, err := m.Probe(t.Context(), &told{events: []volume.ProbeEvent{{Plugin: first}, {Plugin: probedPlugin("example.com/b")}}})
	require.NoError(t, err)
	assert.Equal(t, []string{"example.com/a", "example.com/b"}, changed)
	assert.Equal(t, []string{"example.com/a", "example.com/b", "example.com/own"}, m.PluginNames())

	changed, err = m.Probe(t.Context(), &told{events: []volume.ProbeEvent{
		{Plugin: second}, {Op: volume.ProbeRemove, PluginName: "example.com/b"}, {Op: volume.ProbeRemove, PluginName: "example.com/none"},
	}})
	require.NoError(t, err)
	assert.Equal(t, []string{"example.com/a", "example.com/b", "example.com/none"}, changed)
	found, err := m.FindPluginByName("example.com/a")
	require.NoError(t, err)
	assert.Same(t, second, found)
	_, err = m.FindPluginByName("example.com/b")
	require.ErrorIs(t, err, volume.ErrNoPlugin)
	assert.Zero(t, m.Capabilities("example.com/b"))
}

func TestWhatAProberTellsWronglyChangesNothingElse(t *testing.T) {
	own := probedPlugin("example.com/own")
	m := newRegistry(t, own)
	good, broken := probedPlugin("example.com/good"), probedPlugin("example.com/good")
	broken.Inject(fake.MethodInit, fake.Fail(errors.New("broken")), fake.PanicWith("oops"))
	errProbe := errors.New("half of it could not be read")
	changed, err := m.Probe(t.Context(), &told{err: errProbe, events: []volume.ProbeEvent{
		{Plugin: nil}, {Plugin: probedPlugin("example.com/own")}, {Op: volume.ProbeRemove, PluginName: "example.com/own"}, {Op: 7},
		{Plugin: probedPlugin("no slash")}, {Plugin: good}, {Plugin: broken}, {Plugin: broken},
	}})
	require.ErrorIs(t, err, errProbe)
	require.ErrorIs(t, err, volume.ErrInvalid)
	require.ErrorContains(t, err, "broken")
	assert.Equal(t, []string{"example.com/good"}, changed)
	assert.Equal(t, []string{"example.com/good", "example.com/own"}, m.PluginNames())
	for name, want := range map[string]*fake.Plugin{"example.com/own": own, "example.com/good": good} {
		found, err := m.FindPluginByName(name)
		require.NoError(t, err)
		assert.Same(t, want, found, "one that is refused leaves the one before")
	}
	var panicked *volume.PanicError
	_, err = m.Probe(t.Context(), &told{panics: "oops"})
	require.ErrorAs(t, err, &panicked)
	_, err = volume.NewVolumePluginMgr(nil).Probe(t.Context(), &told{events: []volume.ProbeEvent{{Plugin: good}}})
	require.ErrorIs(t, err, volume.ErrInvalid)
}

// TestLookUpsGoOnWhilePluginsComeAndGo, also while one of them is being initialised.
func TestLookUpsGoOnWhilePluginsComeAndGo(t *testing.T) {
	m := newRegistry(t, probedPlugin("example.com/own"))
	release := make(chan struct{})
	slow := probedPlugin("example.com/slow")
	slow.Inject(fake.MethodInit, fake.HangUntil(release))
	var wg sync.WaitGroup
	wg.Go(func() {
		_, err := m.Probe(t.Context(), &told{events: []volume.ProbeEvent{{Plugin: slow}}})
		assert.NoError(t, err)
	})
	require.NoError(t, slow.AwaitCalls(t.Context(), fake.MethodInit, 1))
	_, err := m.FindPluginByName("example.com/own")
	require.NoError(t, err)
	_, err = m.FindPluginByName("example.com/slow")
	require.ErrorIs(t, err, volume.ErrNoPlugin)
	require.ErrorIs(t, m.InitPlugins(t.Context(), probedPlugin("example.com/slow")), volume.ErrInvalid)
	for range 100 {
		wg.Go(func() {
			_, err := m.Probe(t.Context(), &told{events: []volume.ProbeEvent{
				{Plugin: probedPlugin("example.com/x")}, {Op: volume.ProbeRemove, PluginName: "example.com/x"},
			}})
			if err != nil {
				assert.ErrorIs(t, err, volume.ErrInvalid, "two at once are told so")
			}
			_, err = m.FindPluginByName("example.com/own")
			assert.NoError(t, err)
		})
	}
	close(release)
	wg.Wait()
	_, err = m.FindPluginByName("example.com/slow")
	require.NoError(t, err)
}
