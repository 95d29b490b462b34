package volumemanager

import (
	"errors"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/volume"
)

// newReusingWorld returns a node with a pod whose volume is set up, by a plugin that says that it need not be set up again,
// and whose manager has ended.
func newReusingWorld(t *testing.T, pod *v1.Pod) *world {
	t.Helper()
	w := newWorld(t, Options{RuntimeDir: filepath.Join(t.TempDir(), "run")})
	w.reuse = true
	w.start()
	w.add(pod)
	require.NoError(t, w.stop())
	return w
}

// ownPath is where the volume "own" of pod "a" is set up.
func (w *world) ownPath() string {
	return w.plugins.Host().GetPodVolumeDir("uid-a", fake.DefaultPluginName, "own")
}

func TestWhatARestartFindsAsItWasSetUpIsNotSetUpAgain(t *testing.T) {
	group, always := int64(1234), v1.FSGroupChangeAlways
	for name, change := range map[string]func(*v1.Pod){
		"plain":     func(*v1.Pod) {},
		"read-only": func(p *v1.Pod) { yes := true; p.Spec.Volumes[0].CSI.ReadOnly = &yes },
		"group": func(p *v1.Pod) {
			p.Spec.SecurityContext = &v1.PodSecurityContext{RunAsUser: &group, FSGroup: &group, FSGroupChangePolicy: &always}
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				pod := podOf("a", "-own")
				change(pod)
				w := newReusingWorld(t, pod)
				for range 2 { // The record stays good for the start after the next.
					m := w.start()
					w.add(pod)
					m.PodsComplete()
					synctest.Wait()
					assert.Empty(t, w.changes())
					assert.EqualValues(t, 1, m.Status().Reused)
					rows := m.PodStatus(pod.UID)
					require.Len(t, rows, 1)
					assert.Equal(t, PhaseMounted, rows[0].Phase)
					assert.Equal(t, w.ownPath(), rows[0].Path)
					assert.Equal(t, name == "read-only", rows[0].ReadOnly)
					require.NoError(t, w.stop())
				}
				w.start().PodsComplete()
				w.add(pod)
				w.remove(pod)
				w.isClean()
			})
		})
	}
}

// TestAPodOfAReusedVolumeIsReadyWithoutACallOfThePlugin but those that do no I/O.
func TestAPodOfAReusedVolumeIsReadyWithoutACallOfThePlugin(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		pod := podOf("a", "-own")
		w := newReusingWorld(t, pod)
		w.start()
		w.add(pod)
		for _, c := range w.plugin.Calls() {
			assert.Contains(t, []fake.Method{fake.MethodInit, fake.MethodNewMounter, fake.MethodNewUnmounter}, c.Method)
		}
	})
}

// TestAVolumeIsSetUpAgainWhereAProofIsMissing that it is what the pod asks for.
func TestAVolumeIsSetUpAgainWhereAProofIsMissing(t *testing.T) {
	remount := func(options ...string) func(*world) {
		return func(w *world) {
			require.NoError(w.t, w.mounter.Mount(w.t.Context(), mount.Request{Target: w.ownPath(), Options: append(options, "remount")}))
		}
	}
	record := func(change func(r map[string]any)) func(*world) {
		return func(w *world) { rewriteRecord(w.t, w.options.RuntimeDir, change) }
	}
	setUpOf := func(r map[string]any) map[string]any { return r["pods"].(map[string]any)["uid-a"].(map[string]any) }
	group, user := int64(1234), int64(4321)
	always, onMismatch := v1.FSGroupChangeAlways, v1.FSGroupChangeOnRootMismatch
	for name, tc := range map[string]struct {
		pod     func(*v1.Pod) // before
		between func(*world)
		// prepared is called before the next manager runs.
		prepared func(*world)
		asks     func(*v1.Pod) // after
	}{
		"the plugin says that it has to be":   {between: func(w *world) { w.reuse = false }},
		"the plugin says nothing":             {between: func(w *world) { w.without = volume.CapReuse }},
		"the record does not say that it was": {between: record(func(r map[string]any) { delete(setUpOf(r), "settled") })},
		"the record is of another boot":       {between: record(func(r map[string]any) { r["bootID"] = "another" })},
		"the record does not know the mount":  {between: record(func(r map[string]any) { delete(setUpOf(r), "mount") })},
		"the record knows the mount by no own id": {between: record(func(r map[string]any) {
			setUpOf(r)["mount"] = map[string]any{"other": map[string]any{"FSType": "tmpfs"}}
		})},
		"the record knows another mount": {between: record(func(r map[string]any) { setUpOf(r)["mount"] = map[string]any{"unique": 4711} })},
		"nothing is mounted": {between: func(w *world) {
			require.NoError(w.t, w.mounter.Unmount(w.t.Context(), w.ownPath(), mount.UnmountOptions{}))
		}},
		"another mount is in its place": {between: func(w *world) {
			require.NoError(w.t, w.mounter.Unmount(w.t.Context(), w.ownPath(), mount.UnmountOptions{}))
			require.NoError(w.t, w.mounter.Mount(w.t.Context(), mount.Request{Source: "tmpfs", Target: w.ownPath(), FSType: "tmpfs"}))
		}},
		"the mount is read-only now":         {between: remount("bind", "ro")},
		"the mount has another option":       {between: remount("bind", "noexec")},
		"the filesystem is read-only":        {between: remount("ro")},
		"the mounter is not made":            {prepared: func(w *world) { w.plugin.Inject(fake.MethodNewMounter, fake.Fail(errors.New("not now"))) }},
		"the values of the spec are secrets": {pod: func(p *v1.Pod) { p.Spec.Volumes[0].CSI.VolumeAttributes = map[string]string{"key": "value"} }},
		"the pod asks for another group":     {asks: func(p *v1.Pod) { p.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: &group} }},
		"the pod asks for another policy": {
			pod: func(p *v1.Pod) {
				p.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: &group, FSGroupChangePolicy: &onMismatch}
			},
			asks: func(p *v1.Pod) {
				p.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: &group, FSGroupChangePolicy: &always}
			},
		},
		"the pod asks for another user":   {asks: func(p *v1.Pod) { p.Spec.SecurityContext = &v1.PodSecurityContext{RunAsUser: &user} }},
		"the pod asks for read-only":      {asks: func(p *v1.Pod) { yes := true; p.Spec.Volumes[0].CSI.ReadOnly = &yes }},
		"the pod asks for another source": {asks: func(p *v1.Pod) { fsType := "ext4"; p.Spec.Volumes[0].CSI.FSType = &fsType }},
		"the pod has another name":        {asks: func(p *v1.Pod) { p.Name = "b" }},
		"the pod is in another namespace": {asks: func(p *v1.Pod) { p.Namespace = "other" }},
		"the mount table cannot be read":  {prepared: func(w *world) { w.mounter.Inject(fake.MethodLookup, fake.Fail(errors.New("not now"))) }},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				pod := podOf("a", "-own")
				if tc.pod != nil {
					tc.pod(pod)
				}
				w := newReusingWorld(t, pod)
				if tc.between != nil {
					tc.between(w)
				}
				if tc.asks != nil {
					tc.asks(pod)
				}
				m := w.prepare()
				if tc.prepared != nil {
					tc.prepared(w)
				}
				w.run()
				w.add(pod)
				assert.Contains(t, w.changes(), "SetUp uid-a")
				assert.Zero(t, m.Status().Reused)
			})
		})
	}
}

// TestASetUpThatBeginsIsNotSettled until it has succeeded, on disk too: a process that is killed in the midst of it leaves a
// volume that is set up again.
func TestASetUpThatBeginsIsNotSettled(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		pod := podOf("a", "-own")
		w := newReusingWorld(t, pod)
		group := int64(1234)
		pod.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: &group}
		w.prepare()
		release := make(chan struct{})
		w.plugin.Inject(fake.MethodSetUp, fake.HangUntil(release))
		w.run()
		require.NoError(t, w.manager.AddPod(t.Context(), pod))
		synctest.Wait()
		assert.False(t, w.isSettled())
		close(release)
		require.NoError(t, w.manager.WaitForAttachAndMount(t.Context(), pod))
		synctest.Wait()
		assert.True(t, w.isSettled())
	})
}

// isSettled reports whether the only record on disk says of a set-up that it has succeeded.
func (w *world) isSettled() bool {
	w.t.Helper()
	records := slices.Collect(maps.Values(w.records()))
	require.Len(w.t, records, 1)
	return strings.Contains(records[0], `"settled":`)
}
