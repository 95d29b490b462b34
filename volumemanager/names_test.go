package volumemanager

import (
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/internal/record"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/containers"
)

// TestAVolumeOfThePodAndAPersistentVolumeOfOneNameAreRefused: they would be set up at one path, and the pod would get the one's
// storage for the other.
func TestAVolumeOfThePodAndAPersistentVolumeOfOneNameAreRefused(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		w.start()
		w.claim("data")
		err := w.manager.AddPod(t.Context(), podOf("a", "data", "-pv-data"))
		require.ErrorIs(t, err, volume.ErrInvalid)
		require.ErrorContains(t, err, "another name")
		w.add(podOf("b", "data", "-pv-other"))

		// The claim is bound only after the pod was added.
		late := podOf("c", "late", "-pv-late")
		w.create(claimOfName("late"))
		require.NoError(t, w.manager.AddPod(t.Context(), late))
		pvc, err := store.Get[*v1.PersistentVolumeClaim](t.Context(), w.store, "default", "late")
		require.NoError(t, err)
		w.create(volumeOfClaim(pvc))
		w.bind("late")
		synctest.Wait()
		status := map[string]VolumeStatus{}
		for _, s := range w.manager.PodStatus(late.UID) {
			status[s.OuterName] = s
		}
		require.ErrorIs(t, status["late"].Err, volume.ErrInvalid)
		assert.Equal(t, PhaseUnresolved, status["late"].Phase)
		assert.Equal(t, PhaseMounted, status["pv-late"].Phase)
	})
}

// TestVolumesOfPodsWithAnyUIDsDoNotMeet: how the UID and the volume's name are joined leaves no doubt.
func TestVolumesOfPodsWithAnyUIDsDoNotMeet(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		w.start()
		first, second := podOf("a", "-y-z"), podOf("b", "-z")
		first.UID, second.UID = "uid-x", "uid-x-y"
		w.add(first)
		w.add(second)
		assert.Len(t, w.mounts(), 2)
		names := map[v1.UniqueVolumeName]bool{}
		for _, pod := range []*v1.Pod{first, second} {
			names[w.manager.PodStatus(pod.UID)[0].Volume] = true
		}
		assert.Len(t, names, 2)
		w.remove(first)
		assert.Len(t, w.mounts(), 1)
		w.remove(second)
		w.isClean()
	})
}

// TestRecordsOfOlderVersionsAreTakenOver: what an older manager has set up for a pod stays the pod's, and no record is left under
// an old name.
func TestRecordsOfOlderVersionsAreTakenOver(t *testing.T) {
	for version, older := range map[string]*strings.Replacer{
		"1": strings.NewReplacer(`"version":3`, `"version":1`, "/pods/uid-a/own\"", "/uid-a-own\""),
		"2": strings.NewReplacer(`"version":3`, `"version":2`),
	} {
		t.Run(version, func(t *testing.T) { takesOverRecords(t, older) })
	}
}

// takesOverRecords has a manager take over records that older makes of those of this version.
func takesOverRecords(t *testing.T, older *strings.Replacer) {
	t.Helper()
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, Options{RuntimeDir: t.TempDir()})
		w.start()
		w.claim("data")
		pod := podOf("a", "data", "-own")
		w.add(pod)
		require.NoError(t, w.stop())
		mounts := w.mounts()

		dir, err := record.Open(w.options.RuntimeDir, record.Options{})
		require.NoError(t, err)
		records, _, err := dir.Load()
		require.NoError(t, err)
		require.Len(t, records, 2)
		for _, r := range records {
			require.NoError(t, dir.Remove(r.Key))
			payload := older.Replace(string(r.Payload))
			require.NotEqual(t, string(r.Payload), payload)
			key := strings.TrimSuffix(older.Replace(r.Key+"\""), "\"")
			require.NoError(t, dir.Put(key, []byte(payload)))
		}
		require.NoError(t, dir.Close())

		w.start()
		require.NoError(t, w.manager.AddPod(t.Context(), pod))
		w.manager.PodsComplete()
		require.NoError(t, w.manager.WaitForAttachAndMount(t.Context(), pod))
		synctest.Wait()
		assert.Equal(t, mounts, w.mounts())
		assert.Zero(t, w.countSetUps()["TearDown"])
		assert.Len(t, w.records(), 2)
		w.remove(pod)
		w.isClean()
	})
}

// TestContainersOfOneNameAreRefused, whatever kind they are of.
func TestContainersOfOneNameAreRefused(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		w.start()
		for name, change := range map[string]func(*v1.Pod){
			"ordinary": func(p *v1.Pod) { p.Spec.Containers = append(p.Spec.Containers, p.Spec.Containers[0]) },
			"init":     func(p *v1.Pod) { p.Spec.InitContainers = p.Spec.Containers },
			"ephemeral": func(p *v1.Pod) {
				p.Spec.EphemeralContainers = []v1.EphemeralContainer{{EphemeralContainerCommon: v1.EphemeralContainerCommon(p.Spec.Containers[0])}}
			},
			"volumes": func(p *v1.Pod) { p.Spec.Volumes = append(p.Spec.Volumes, p.Spec.Volumes[0]) },
		} {
			pod := podOf("a", "-own")
			change(pod)
			require.ErrorIs(t, w.manager.AddPod(t.Context(), pod), volume.ErrInvalid, name)
		}
	})
}

// TestPlacesOfVolumesOfOnePodDoNotMeet, whatever their plugins and names are.
func TestPlacesOfVolumesOfOnePodDoNotMeet(t *testing.T) {
	host, err := volume.NewHost(volume.HostOptions{RootDir: testRoot, NodeName: testNode})
	require.NoError(t, err)
	plugins := []string{"a.b/c", "a/b-c", "a.b/c.d", "a.b.c/d", "a/b"}
	names := []string{"x", "c~x", "b~x", "d~x", "x~y", "~x", strings.Repeat("n", 255), strings.Repeat("n", 254)}
	seen := map[string]string{}
	for _, plugin := range plugins {
		require.NoError(t, volume.ValidatePluginName(plugin))
		for _, name := range names {
			of := plugin + " and " + name
			for _, place := range []string{
				host.GetPodVolumeDir("uid", plugin, name), host.GetPodVolumeDeviceDir("uid", plugin) + "/" + name,
				host.GetPodPluginDir("uid", plugin) + "/" + name, containers.SubpathName(plugin, name),
			} {
				assert.Empty(t, seen[place], "%q is that of %s", place, of)
				seen[place] = of
				require.NoError(t, volume.CheckPathElement(filepath.Base(place)))
			}
		}
	}
}
