package volumemanager

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/volume"
)

// prober tells of what it is given.
type prober struct {
	events chan volume.ProbeEvent
	errs   chan error
}

func newProber() *prober {
	return &prober{events: make(chan volume.ProbeEvent), errs: make(chan error)}
}

func (p *prober) Probe(ctx context.Context) ([]volume.ProbeEvent, error) {
	select {
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case err := <-p.errs:
		return nil, err
	case event := <-p.events:
		return []volume.ProbeEvent{event}, nil
	}
}

// TestPluginsComeAndGoWhileTheManagerRuns: a pod waits until the plugin of its volume is there. When a plugin goes, its
// volumes stay known until it is back.
func TestPluginsComeAndGoWhileTheManagerRuns(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		p := newProber()
		o := withRecords(t)
		o.Prober = p
		w := newWorld(t, o)
		w.claim("data")
		w.prepare()
		host := w.plugins.Host()
		w.plugins = volume.NewVolumePluginMgr(host)
		var err error
		w.manager, err = New(w.plugins, w.options)
		require.NoError(t, err)
		w.run()
		m := w.manager
		m.PodsComplete()
		began := time.Now()

		pod := podOf("web", "data", "-own")
		require.NoError(t, m.AddPod(t.Context(), pod))
		pass(0)
		for _, status := range m.PodStatus(pod.UID) {
			assert.Equal(t, PhaseUnresolved, status.Phase)
			require.ErrorIs(t, status.Err, ErrPluginAwaited)
			require.ErrorIs(t, status.Err, volume.ErrNoPlugin)
		}
		p.events <- volume.ProbeEvent{Plugin: w.plugin}
		require.NoError(t, m.WaitForAttachAndMount(t.Context(), pod))
		assert.Zero(t, time.Since(began))
		mounts := w.mounts()

		p.events <- volume.ProbeEvent{Op: volume.ProbeRemove, PluginName: fake.DefaultPluginName}
		synctest.Wait()
		require.NoError(t, m.UpdatePod(t.Context(), pod), "that its plugin is gone takes nothing from a pod")
		require.NoError(t, m.WaitForAttachAndMount(t.Context(), pod))
		require.NoError(t, m.RemovePod(pod.UID))
		pass(time.Hour)
		assert.Equal(t, mounts, w.mounts())
		require.Len(t, m.PodStatus(pod.UID), 2)
		require.ErrorIs(t, m.PodStatus(pod.UID)[0].Err, volume.ErrNoPlugin)
		assert.NotEmpty(t, w.records())

		began = time.Now()
		p.events <- volume.ProbeEvent{Plugin: w.plugin}
		require.NoError(t, m.WaitForNodeEmpty(t.Context()))
		assert.Zero(t, time.Since(began), "no wait lasts until the end of a back-off")
		w.isClean()
	})
}

// TestAProberThatFailsIsAskedAgainAfterAWhile, and its panic is an error, too.
func TestAProberThatFailsIsAskedAgainAfterAWhile(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		p := newProber()
		w := newWorld(t, Options{Prober: p})
		w.start()
		for range 3 {
			p.errs <- errors.New("the directory of plugins cannot be read")
		}
		began := time.Now()
		p.errs <- errors.New("again")
		assert.Greater(t, time.Since(began), 3*time.Second)
		p.events <- volume.ProbeEvent{Plugin: nil}
		p.events <- volume.ProbeEvent{Op: volume.ProbeRemove, PluginName: fake.DefaultPluginName}
		pass(time.Hour)
		assert.Equal(t, []string{fake.DefaultPluginName}, w.plugins.PluginNames(), "that one was not probed")
	})
}
