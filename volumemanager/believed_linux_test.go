package volumemanager

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/internal/record"
	"github.com/volumekit/volumekit/plugins/emptydir"
	"github.com/volumekit/volumekit/volume"
)

// copyRecord writes a record under another key, changed, beside the only one that is there.
func copyRecord(t *testing.T, path, key string, change func(r map[string]any)) {
	t.Helper()
	dir, err := record.Open(path, record.Options{})
	require.NoError(t, err)
	records, _, err := dir.Load()
	require.NoError(t, err)
	require.Len(t, records, 1)
	var r map[string]any
	require.NoError(t, json.Unmarshal(records[0].Payload, &r))
	r["volume"] = key
	change(r)
	payload, err := json.Marshal(r)
	require.NoError(t, err)
	require.NoError(t, dir.Put(key, payload))
	require.NoError(t, dir.Close())
}

// TestARecordUnderAnotherVolumesNameDeletesNoData: each part of the record is well-formed, and its path is that of the pod's
// volume. Only its name is that of another volume, which no pod wants.
func TestARecordUnderAnotherVolumesNameDeletesNoData(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		root := t.TempDir()
		host, err := volume.NewHost(volume.HostOptions{RootDir: filepath.Join(root, "lib"), NodeName: testNode})
		require.NoError(t, err)
		plugins := volume.NewVolumePluginMgr(host)
		require.NoError(t, plugins.InitPlugins(t.Context(), emptydir.New(emptydir.Options{})))
		n := realNode{root: root, plugins: plugins, options: Options{NoMountChecks: true, RuntimeDir: filepath.Join(root, "run"), Resync: -1}}
		pod := emptyDirPod("web")
		pod.Spec.Volumes[0].EmptyDir.Medium, pod.Spec.Volumes[0].EmptyDir.SizeLimit = "", nil
		m, stop := n.start(t)
		require.NoError(t, m.AddPod(t.Context(), pod))
		require.NoError(t, m.WaitForAttachAndMount(t.Context(), pod))
		data := filepath.Join(m.GetMountedVolumesForPod(volume.GetUniquePodName(pod))["cache"].Path, "data")
		require.NoError(t, os.WriteFile(data, []byte("precious"), 0o600))
		stop()
		copyRecord(t, n.options.RuntimeDir, emptydir.Name+"/uid-other-cache", func(map[string]any) {})

		m, stop = n.start(t)
		defer stop()
		require.NoError(t, m.AddPod(t.Context(), pod))
		require.NoError(t, m.WaitForAttachAndMount(t.Context(), pod))
		m.PodsComplete()
		pass(time.Hour)
		assert.FileExists(t, data)
		damaged := m.Status().Damaged
		require.Len(t, damaged, 1)
		assert.FileExists(t, damaged[0].Path)
		require.ErrorIs(t, damaged[0].Err, volume.ErrInvalid)
		assert.ErrorContains(t, damaged[0].Err, "uid-other-cache")
	})
}

// TestARecordIsBelievedOnlyWithThePathsThatItsPluginComputes.
func TestARecordIsBelievedOnlyWithThePathsThatItsPluginComputes(t *testing.T) {
	setUp := func(r map[string]any) map[string]any { return r["pods"].(map[string]any)["uid-web"].(map[string]any) }
	cases := map[string]func(r map[string]any){
		"set-up of another inner name": func(r map[string]any) {
			setUp(r)["path"] = testRoot + "/pods/uid-web/volumes/example.com~fake/pv-other"
		},
		"set-up below a plugin's name that it does not have": func(r map[string]any) {
			setUp(r)["path"] = testRoot + "/pods/uid-web/volumes/example.com~other/pv-data"
		},
		"staging of another handle": func(r map[string]any) {
			r["staging"].(map[string]any)["path"] = testRoot + "/plugins/example.com/fake/mounts/disk-other"
		},
		"staging of a volume that is not staged": func(r map[string]any) {
			r["spec"].(map[string]any)["persistentVolume"].(map[string]any)["spec"].(map[string]any)["volumeMode"] = "Block"
		},
		"handle of another volume": func(r map[string]any) {
			csi := r["spec"].(map[string]any)["persistentVolume"].(map[string]any)["spec"].(map[string]any)["csi"]
			csi.(map[string]any)["volumeHandle"] = "disk-other"
		},
	}
	for name, change := range cases {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				w := newWorld(t, Options{RuntimeDir: filepath.Join(t.TempDir(), "run")})
				w.claim("data")
				w.start()
				w.add(podOf("web", "data"))
				require.NoError(t, w.stop())
				rewriteRecord(t, w.options.RuntimeDir, change)

				m := w.start()
				m.PodsComplete()
				pass(time.Hour)
				assert.Empty(t, w.changes())
				assert.Len(t, w.mounts(), 2)
				require.Len(t, m.Status().Damaged, 1)
				assert.Empty(t, m.Status().Volumes)
			})
		})
	}
}

// TestTwoRecordsOfOnePathAreBothSetAside: each names what its plugin computes, as that of a PersistentVolume which was made
// again with other storage does. Which of them is right is not known.
func TestTwoRecordsOfOnePathAreBothSetAside(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, Options{RuntimeDir: filepath.Join(t.TempDir(), "run")})
		w.claim("data")
		w.start()
		w.add(podOf("web", "data"))
		require.NoError(t, w.stop())
		before := w.mounts()
		copyRecord(t, w.options.RuntimeDir, fake.DefaultPluginName+"/disk-other", func(r map[string]any) {
			csi := r["spec"].(map[string]any)["persistentVolume"].(map[string]any)["spec"].(map[string]any)["csi"]
			csi.(map[string]any)["volumeHandle"] = "disk-other"
			delete(r, "staging")
			delete(r, "attachment")
		})

		m := w.start()
		m.PodsComplete()
		pass(time.Hour)
		assert.Empty(t, w.changes())
		assert.Equal(t, before, w.mounts())
		require.Len(t, m.Status().Damaged, 2)
		for _, d := range m.Status().Damaged {
			require.ErrorIs(t, d.Err, volume.ErrInvalid)
			assert.ErrorContains(t, d.Err, "pv-data")
		}
	})
}

// TestARecordWaitsForThePluginThatItIsComparedWith: nothing is done by it before, and nothing at all when they disagree.
func TestARecordWaitsForThePluginThatItIsComparedWith(t *testing.T) {
	for _, agrees := range []bool{true, false} {
		inBubble(t, func(t *testing.T) {
			p := newProber()
			o := Options{RuntimeDir: filepath.Join(t.TempDir(), "run")}
			w := newWorld(t, o)
			w.claim("data")
			w.start()
			w.add(podOf("web", "data"))
			require.NoError(t, w.stop())
			before := w.mounts()
			if !agrees {
				rewriteRecord(t, w.options.RuntimeDir, func(r map[string]any) {
					r["pods"].(map[string]any)["uid-web"].(map[string]any)["path"] = testRoot + "/pods/uid-web/volumes/example.com~fake/pv-other"
				})
			}

			w.options.Prober = p
			w.prepare()
			w.plugins = volume.NewVolumePluginMgr(w.plugins.Host())
			var err error
			w.manager, err = New(w.plugins, w.options)
			require.NoError(t, err)
			w.run()
			m := w.manager
			m.PodsComplete()
			pass(time.Hour)
			status := m.PodStatus("uid-web")
			require.Len(t, status, 1)
			require.ErrorIs(t, status[0].Err, volume.ErrNoPlugin)

			p.events <- volume.ProbeEvent{Plugin: w.plugin}
			if agrees {
				require.NoError(t, m.WaitForNodeEmpty(t.Context()))
				w.isClean()
				return
			}
			synctest.Wait()
			pass(time.Hour)
			assert.Empty(t, w.changes())
			assert.Equal(t, before, w.mounts())
			status = m.PodStatus("uid-web")
			require.Len(t, status, 1)
			require.ErrorIs(t, status[0].Err, volume.ErrInvalid)
		})
	}
}
