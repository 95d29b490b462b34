package volumemanager

import (
	"context"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

// The zero Options keep records below the root, so that the next manager knows what this one has mounted. Only NoRecords does not.
func TestRecordsAreKeptUnlessToldOtherwise(t *testing.T) {
	for name, o := range map[string]Options{"zero": {}, "NoRecords": {NoRecords: true}} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			mounter := fake.NewMounter(fake.MounterOptions{})
			before, err := mounter.List(t.Context())
			require.NoError(t, err)
			start := func() (*Manager, func()) {
				host, err := volume.NewHost(volume.HostOptions{RootDir: root, NodeName: testNode})
				require.NoError(t, err)
				plugins := volume.NewVolumePluginMgr(host)
				require.NoError(t, plugins.InitPlugins(t.Context(), fake.NewPlugin(fake.PluginOptions{Mounter: mounter})))
				o.Mounter = mounter
				m, err := New(plugins, o)
				require.NoError(t, err)
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				go func() { ended <- m.Run(ctx) }()
				return m, func() {
					cancel()
					require.NoError(t, <-ended)
				}
			}
			m, stop := start()
			pod := podOf("web", "-scratch")
			require.NoError(t, m.AddPod(t.Context(), pod))
			require.NoError(t, m.WaitForAttachAndMount(t.Context(), pod))
			stop() // its mounts stay

			next, stop := start()
			defer stop()
			if o.NoRecords {
				assert.NoDirExists(t, filepath.Join(root, "records"))
				require.NoError(t, next.WaitForUnmount(t.Context(), pod))
				return
			}
			assert.DirExists(t, filepath.Join(root, "records", "mounts"))
			assert.DirExists(t, filepath.Join(root, "records", "attachments"))
			require.NoError(t, next.RemovePod(pod.UID))
			next.PodsComplete()
			require.NoError(t, next.WaitForUnmount(t.Context(), pod))
			require.NoError(t, next.WaitForNodeEmpty(t.Context()))
			mounts, err := mounter.List(t.Context())
			require.NoError(t, err)
			assert.Equal(t, before, mounts)
		})
	}
}

// An orchestrator that forgets PodsComplete is told so by the wait that it keeps waiting.
func TestAWaitSaysThatPodsCompleteWasForgotten(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, withRecords(t))
		pod := podOf("web", "-scratch")
		m := w.start()
		require.NoError(t, m.AddPod(t.Context(), pod))
		require.NoError(t, m.WaitForAttachAndMount(t.Context(), pod))
		require.NoError(t, w.stop())

		m = w.start()
		synctest.Wait()
		empty := func() error {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			return m.WaitForNodeEmpty(ctx)
		}
		require.ErrorContains(t, empty(), "PodsComplete was not called")
		m.PodsComplete()
		require.NoError(t, empty())
	})
}

// TestAPluginThatReportsWithoutAMountIsFoundOut by the zero Options: the plugin mounts in a table of its own, not in the kernel's. Only
// NoMountChecks believes it.
func TestAPluginThatReportsWithoutAMountIsFoundOut(t *testing.T) {
	for name, o := range map[string]Options{"zero": {}, "NoMountChecks": {NoMountChecks: true}} {
		t.Run(name, func(t *testing.T) {
			host, err := volume.NewHost(volume.HostOptions{RootDir: t.TempDir(), NodeName: testNode})
			require.NoError(t, err)
			plugins := volume.NewVolumePluginMgr(host)
			require.NoError(t, plugins.InitPlugins(t.Context(), fake.NewPlugin(fake.PluginOptions{Mounter: fake.NewMounter(fake.MounterOptions{})})))
			m, err := New(plugins, o)
			require.NoError(t, err)
			ended := make(chan error, 1)
			go func() { ended <- m.Run(t.Context()) }()
			pod := podOf("web", "-scratch")
			require.NoError(t, m.AddPod(t.Context(), pod))
			if o.NoMountChecks {
				require.NoError(t, m.WaitForAttachAndMount(t.Context(), pod))
			} else {
				for change := range m.Subscribe(t.Context()) {
					if len(change.Volumes) > 0 && change.Volumes[0].Err != nil {
						require.ErrorIs(t, change.Volumes[0].Err, operationexecutor.ErrContractViolation)
						break
					}
				}
			}
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			_ = m.Stop(ctx) // The volume of a pod that was not removed stays.
			require.NoError(t, <-ended)
		})
	}
}

// TestAProgramThatForgetsCallsIsTold in the log: of PodsComplete at each resync, of volumes that Run leaves when it ends.
func TestAProgramThatForgetsCallsIsTold(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		var log strings.Builder
		o := withRecords(t)
		o.Resync = defaultResync
		o.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))
		w := newWorld(t, o)
		pod := podOf("web", "-scratch")
		w.start()
		w.add(pod)
		require.NoError(t, w.stop())
		assert.NotContains(t, log.String(), "Stop", "the pod was not removed")

		m := w.start()
		pass(defaultResync + defaultResync/5)
		assert.Contains(t, log.String(), "PodsComplete")
		require.NoError(t, m.AddPod(t.Context(), pod))
		require.NoError(t, m.WaitForAttachAndMount(t.Context(), pod))
		m.PodsComplete()
		log.Reset()
		pass(defaultResync + defaultResync/5)
		assert.Empty(t, log.String())

		w.plugin.Inject(fake.MethodTearDown, fake.Fail(volume.Transient(errStore)))
		require.NoError(t, m.RemovePod(pod.UID))
		synctest.Wait()
		require.NoError(t, w.stop())
		assert.Contains(t, log.String(), "call Stop")
	})
}
