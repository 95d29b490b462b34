package volumemanager

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

// fakeBlocks is a port of block volumes that outlives a manager, as what the kernel has does.
type fakeBlocks struct {
	mu    sync.Mutex
	binds map[string]string // path of a pod's link to its device
	fails error             // of the next call
	// unmapped is how often UnmapDevice has succeeded.
	unmapped int
}

func (f *fakeBlocks) unmaps() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.unmapped
}

func (f *fakeBlocks) do(work func() error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.fails; err != nil {
		f.fails = nil
		return err
	}
	return work()
}

func linkOf(d operationexecutor.DeviceMapping) string {
	return filepath.Join(d.PodMapDir, d.LinkName) + " by " + filepath.Join(d.GlobalMapPath, string(d.PodUID))
}

func (f *fakeBlocks) MapDevice(_ context.Context, d operationexecutor.DeviceMapping) error {
	return f.do(func() error {
		if d.DevicePath == "" {
			return errors.New("no device")
		}
		f.binds[linkOf(d)] = d.DevicePath
		return nil
	})
}

func (f *fakeBlocks) UnmapDevice(_ context.Context, d operationexecutor.DeviceMapping) error {
	return f.do(func() error {
		delete(f.binds, linkOf(d))
		f.unmapped++
		return nil
	})
}

func (f *fakeBlocks) ResolveDevice(_ context.Context, path string) (string, error) { return path, nil }

func (f *fakeBlocks) MappedPods(_ context.Context, globalMapPath string) ([]string, error) {
	var pods []string
	for _, bind := range f.mapped() {
		_, bind, _ = strings.Cut(bind, " by ")
		if dir, pod := filepath.Split(bind); filepath.Clean(dir) == globalMapPath {
			pods = append(pods, pod)
		}
	}
	return pods, nil
}

func (f *fakeBlocks) RemoveMapPath(context.Context, string) error { return nil }

func (f *fakeBlocks) failNext(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fails = err
}

func (f *fakeBlocks) mapped() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Sorted(maps.Keys(f.binds))
}

func bindOf(pod *v1.Pod, claim string) string {
	return fmt.Sprintf("%[1]s/pods/%[2]s/volumeDevices/example.com~fake/pv-%[3]s by %[1]s/plugins/%[4]s/volumeDevices/disk-%[3]s/%[2]s",
		testRoot, pod.UID, claim, testPluginName)
}

func TestBlockVolumesAreMappedAndTakenAway(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, withRecords(t))
		w.blockClaim("disk")
		w.claim("files")
		m := w.start()
		m.PodsComplete()
		pod := blockPodOf("web", "disk")
		files := podOf("web", "files", "-scratch")
		pod.Spec.Volumes = append(pod.Spec.Volumes, files.Spec.Volumes...)
		pod.Spec.Containers[0].VolumeMounts = files.Spec.Containers[0].VolumeMounts
		began := time.Now()
		w.add(pod)
		other := blockPodOf("other", "disk:ro")
		w.add(other)
		assert.Zero(t, time.Since(began))
		assert.Equal(t, []string{bindOf(other, "disk"), bindOf(pod, "disk")}, w.blocks.mapped())

		volumes := m.GetMountedVolumesForPod(volume.GetUniquePodName(pod))
		require.Len(t, volumes, 3)
		disk := volumes["disk"]
		assert.Equal(t, testRoot+"/pods/uid-web/volumeDevices/example.com~fake/pv-disk", disk.DevicePath)
		assert.Empty(t, disk.Path, "nothing is mounted for it")
		assert.Nil(t, disk.Mounter)
		assert.NotNil(t, disk.BlockVolumeMapper)
		assert.False(t, disk.ReadOnly)
		assert.True(t, m.GetMountedVolumesForPod(volume.GetUniquePodName(other))["disk"].ReadOnly)
		assert.Empty(t, volumes["files"].DevicePath)
		synctest.Wait()
		for _, s := range m.PodStatus(pod.UID) {
			assert.Equal(t, PhaseMounted, s.Phase)
			assert.Equal(t, s.OuterName == "disk", s.Block)
			assert.Equal(t, volumes[s.OuterName].Path+volumes[s.OuterName].DevicePath, s.Path)
		}
		assert.Contains(t, m.GetVolumesInUse(), disk.Volume)

		w.remove(other)
		assert.Equal(t, []string{bindOf(pod, "disk")}, w.blocks.mapped())
		w.remove(pod)
		w.isClean()
		assert.True(t, m.reconciler.IsQuiet())
	})
}

func TestABlockVolumeShowsWhereItStandsAndWhatFailed(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		w.blockClaim("disk")
		m := w.start()
		m.PodsComplete()
		pod := blockPodOf("web", "disk")
		release := make(chan struct{})
		w.plugin.Inject(fake.MethodSetUpDevice, fake.HangUntil(release))
		require.NoError(t, m.AddPod(t.Context(), pod))
		synctest.Wait()
		assert.Equal(t, PhaseMounting, m.PodStatus(pod.UID)[0].Phase)
		broken := errors.New("no link today")
		w.blocks.failNext(broken)
		close(release)
		synctest.Wait()
		require.ErrorIs(t, m.PodStatus(pod.UID)[0].Err, broken)
		require.NoError(t, m.WaitForAttachAndMount(t.Context(), pod), "it is tried again")

		release = make(chan struct{})
		w.plugin.Inject(fake.MethodUnmapPodDevice, fake.HangUntil(release))
		require.NoError(t, m.RemovePod(pod.UID))
		synctest.Wait()
		assert.Equal(t, PhaseUnmounting, m.PodStatus(pod.UID)[0].Phase)
		ended := waiting(func() error { return m.WaitForUnmount(t.Context(), pod) })
		_, gone := ended()
		assert.False(t, gone)
		stuck := make(chan struct{})
		w.plugin.Inject(fake.MethodTearDownDevice, fake.HangUntil(stuck))
		close(release)
		err, gone := ended()
		require.NoError(t, err)
		assert.True(t, gone)
		require.Len(t, m.Status().Volumes, 1)
		assert.Equal(t, PhaseUnstaging, m.Status().Volumes[0].Phase)
		assert.True(t, m.Status().Volumes[0].Block)
		close(stuck)
		w.isClean()
	})
}

// TestBlockVolumesAreKnownAfterARestart: one that is wanted stays, one that is not is unmapped.
func TestBlockVolumesAreKnownAfterARestart(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, withRecords(t))
		w.blockClaim("kept")
		w.blockClaim("gone")
		w.start()
		kept, gone := blockPodOf("kept", "kept"), blockPodOf("gone", "gone")
		w.add(kept)
		w.add(gone)
		require.NoError(t, w.stop())

		m := w.start()
		assert.Len(t, w.blocks.mapped(), 2, "nothing goes before all pods have been added")
		status := m.PodStatus(gone.UID)
		require.Len(t, status, 1)
		assert.Equal(t, PhaseUncertain, status[0].Phase)
		assert.True(t, status[0].Block)
		assert.Equal(t, testRoot+"/pods/uid-gone/volumeDevices/example.com~fake/pv-gone", status[0].Path)
		w.add(kept)
		m.PodsComplete()
		require.NoError(t, m.WaitForUnmount(t.Context(), gone))
		assert.Equal(t, []string{bindOf(kept, "kept")}, w.blocks.mapped())
		w.remove(kept)
		w.isClean()
	})
}

// TestBlockVolumesThatAreOfOnePodAlone: a plugin that neither attaches nor stages has a volume for each pod.
func TestBlockVolumesThatAreOfOnePodAlone(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, withRecords(t))
		w.without = volume.CapAttach | volume.CapDeviceMount
		w.blockClaim("disk")
		m := w.start()
		m.PodsComplete()
		w.blocks.failNext(errors.New("no device"))
		pod := blockPodOf("web", "disk")
		require.NoError(t, m.AddPod(t.Context(), pod))
		synctest.Wait()
		require.ErrorContains(t, m.PodStatus(pod.UID)[0].Err, "device")
		w.remove(pod)
		w.isClean()
		assert.True(t, m.reconciler.IsQuiet())
	})
}

// TestAVolumeIsNotADeviceAndAFilesystemAtOnce: two PersistentVolumes may name one disk.
func TestAVolumeIsNotADeviceAndAFilesystemAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, withRecords(t))
		w.claim("files", func(pv *v1.PersistentVolume) { pv.Spec.CSI.VolumeHandle = "disk" })
		w.blockClaim("raw", func(pv *v1.PersistentVolume) { pv.Spec.CSI.VolumeHandle = "disk" })
		m := w.start()
		m.PodsComplete()
		files, raw := podOf("files", "files"), blockPodOf("raw", "raw")
		w.add(files)
		require.NoError(t, m.AddPod(t.Context(), raw))
		pass(time.Hour)
		assert.Empty(t, w.blocks.mapped())
		status := m.PodStatus(raw.UID)[0]
		assert.Equal(t, PhaseWaiting, status.Phase)
		require.ErrorIs(t, status.Err, volume.ErrInUse)
		require.ErrorContains(t, status.Err, "as a filesystem")
		require.NoError(t, m.PodStatus(files.UID)[0].Err)

		began := time.Now()
		w.remove(files)
		require.NoError(t, m.WaitForAttachAndMount(t.Context(), raw))
		assert.Zero(t, time.Since(began), "it is woken when the other one is gone")
		assert.Equal(t, []string{bindOf(raw, "raw")}, []string{strings.Replace(w.blocks.mapped()[0], "disk/uid-raw", "disk-raw/uid-raw", 1)})
		require.NoError(t, m.AddPod(t.Context(), files))
		synctest.Wait()
		require.ErrorContains(t, m.PodStatus(files.UID)[0].Err, "as a device")
		assert.Empty(t, w.mounts())
		w.remove(raw)
		require.NoError(t, m.WaitForAttachAndMount(t.Context(), files))
		assert.Len(t, w.mounts(), 2)
		w.remove(files)
		w.isClean()
	})
}
