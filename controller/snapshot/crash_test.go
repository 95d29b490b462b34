package snapshot

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/internal/crashstore"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// mortalPlugin is the plugin as called by a process that dies at a step, which may be one of its calls.
type mortalPlugin struct {
	*fake.Plugin

	s *crashstore.Store
}

func (p mortalPlugin) CreateSnapshot(ctx context.Context, options volume.SnapshotOptions) (made volume.Snapshot, err error) {
	err = p.s.Step(func() error { made, err = p.Plugin.CreateSnapshot(ctx, options); return err })
	return made, err
}

func (p mortalPlugin) GetSnapshot(ctx context.Context, handle string) (found volume.Snapshot, err error) {
	err = p.s.Step(func() error { found, err = p.Plugin.GetSnapshot(ctx, handle); return err })
	return found, err
}

func (p mortalPlugin) DeleteSnapshot(ctx context.Context, handle string) error {
	return p.s.Step(func() error { return p.Plugin.DeleteSnapshot(ctx, handle) })
}

func (p mortalPlugin) CreateGroupSnapshot(ctx context.Context, options volume.GroupSnapshotOptions) (made volume.GroupSnapshot, err error) {
	err = p.s.Step(func() error { made, err = p.Plugin.CreateGroupSnapshot(ctx, options); return err })
	return made, err
}

func (p mortalPlugin) GetGroupSnapshot(ctx context.Context, handle string, members []string) (found volume.GroupSnapshot, err error) {
	err = p.s.Step(func() error { found, err = p.Plugin.GetGroupSnapshot(ctx, handle, members); return err })
	return found, err
}

func (p mortalPlugin) DeleteGroupSnapshot(ctx context.Context, handle string, members []string) error {
	return p.s.Step(func() error { return p.Plugin.DeleteGroupSnapshot(ctx, handle, members) })
}

// startMortal runs a controller that dies with s.
func (w *world) startMortal(s *crashstore.Store) (stop func()) {
	w.t.Helper()
	host, err := volume.NewHost(volume.HostOptions{RootDir: w.t.TempDir(), NodeName: "node-1"})
	require.NoError(w.t, err)
	living := w.plugins
	defer func() { w.plugins = living }()
	w.plugins = volume.NewVolumePluginMgr(host)
	require.NoError(w.t, w.plugins.InitPlugins(w.t.Context(), mortalPlugin{w.plugin, s}))
	_, stop = w.start(s)
	return stop
}

// ends is how a story ended: what is in the store and in the storage.
func (w *world) ends() []string {
	w.t.Helper()
	lines := []string{fmt.Sprintln("storage", w.handles())}
	snaps, _, err := store.ListOf[*snapshotv1.VolumeSnapshot](w.t.Context(), w.store, "")
	require.NoError(w.t, err)
	for _, s := range snaps {
		slices.Sort(s.Finalizers)
		lines = append(lines, fmt.Sprintln("snapshot", s.Name, s.Finalizers, boundTo(s), s.Status != nil && deref(s.Status.ReadyToUse)))
	}
	contents, _, err := store.ListOf[*snapshotv1.VolumeSnapshotContent](w.t.Context(), w.store, "")
	require.NoError(w.t, err)
	for _, c := range contents {
		lines = append(lines, fmt.Sprintln("content", c.Name, c.Finalizers, c.Annotations, handleOf(c), isReady(c), c.DeletionTimestamp != nil))
	}
	groups, _, err := store.ListOf[*groupv1.VolumeGroupSnapshot](w.t.Context(), w.store, "")
	require.NoError(w.t, err)
	for _, g := range groups {
		lines = append(lines, fmt.Sprintln("group", g.Name, g.Finalizers, groupBoundTo(g), g.Status != nil && deref(g.Status.ReadyToUse)))
	}
	groupContents, _, err := store.ListOf[*groupv1.VolumeGroupSnapshotContent](w.t.Context(), w.store, "")
	require.NoError(w.t, err)
	for _, c := range groupContents {
		lines = append(lines, fmt.Sprintln("group content", c.Name, c.Finalizers, c.Annotations, groupHandleOf(c), isGroupReady(c)))
	}
	claims, _, err := store.ListOf[*v1.PersistentVolumeClaim](w.t.Context(), w.store, "")
	require.NoError(w.t, err)
	for _, c := range claims {
		lines = append(lines, fmt.Sprintln("claim", c.Name, c.Finalizers))
	}
	return lines
}

// story has everything that the controller does. The snapshot "old" is in the storage already.
func (w *world) story() {
	w.t.Helper()
	for _, obj := range with(bound("c"), bound("a", labelled), bound("b", labelled), objectList{
		newClass("x"), newClass("keep", retains), newGroupClass("gx"),
	}) {
		w.create(obj)
	}
	w.create(newByHand("by-hand", existing(w.t, w, "old"), "p"))
	w.create(snapshotOf("p", "by-hand"))
	w.create(newSnapshot("s", "c", "x"))
	w.create(newSnapshot("t", "c", "keep"))
	w.create(newGroup("g", "gx"))
}

// drop deletes all snapshots and groups.
func (w *world) drop() {
	w.t.Helper()
	for _, obj := range []store.Object{newGroup("g", ""), newSnapshot("p", "", ""), newSnapshot("s", "", ""), newSnapshot("t", "", "")} {
		key, err := store.KindsOf(w.store).KeyOf(obj)
		require.NoError(w.t, err)
		require.NoError(w.t, w.store.Delete(w.t.Context(), key, store.Preconditions{}))
	}
	idle()
}

// tell has a controller that dies at a step live the story, and another one go on. It returns how each half ended, and how many steps
// there were.
func tell(t *testing.T, dies int, arrives bool) (middle, end []string, steps int) {
	t.Helper()
	inWorld(t, fake.PluginOptions{}, nil, func(_ *testing.T, w *world) {
		w.story()
		s := crashstore.New(w.store, crashstore.Crash{After: dies, Arrives: arrives})
		stop := w.startMortal(s)
		idle()
		goOn := sync.OnceFunc(func() { stop(); w.start(w.store) })
		if s.IsCrashed() {
			goOn()
		}
		settle()
		if s.IsCrashed() {
			goOn()
		}
		settle()
		middle = w.ends()
		w.drop()
		settle()
		if s.IsCrashed() {
			goOn()
		}
		settle()
		end, steps = w.ends(), s.Steps()
	})
	return middle, end, steps
}

// A controller that dies at any write of the store or any call of the plugin, be it that the step was lost or its answer, leaves what
// the next one brings to the same end: nothing lost, nothing made twice, nothing left.
func TestTheNextControllerComesToTheSameEndWhereverThisOneDied(t *testing.T) {
	middle, end, steps := tell(t, 1<<30, false)
	require.Len(t, middle, 1+5+5+1+1+3, "%v", middle)
	require.Equal(t, []string{
		"storage [snapshot-uid-t]\n",
		fmt.Sprintln("content", "snapcontent-uid-t", []string{FinalizerContent}, map[string]string{AnnSourceVolumes: "pv-c", AnnBeingDeleted: yes}, "snapshot-uid-t", true, false),
		"claim a []\n", "claim b []\n", "claim c []\n",
	}, end)
	require.Greater(t, steps, 50)
	for k := range steps {
		for _, arrives := range []bool{false, true} {
			gotMiddle, gotEnd, _ := tell(t, k, arrives)
			assert.Equal(t, middle, gotMiddle, "died at step %d, which arrived: %v", k, arrives)
			assert.Equal(t, end, gotEnd, "died at step %d, which arrived: %v", k, arrives)
		}
	}
}

// Whatever a controller had begun when it died, nothing of it is left when everything was deleted before the next one starts.
func TestWhatIsDeletedWhileNoControllerRunsLeavesNothing(t *testing.T) {
	life := func(dies int, arrives bool) (end []string, steps int) {
		inWorld(t, fake.PluginOptions{}, nil, func(_ *testing.T, w *world) {
			w.story()
			change(w, newClass("keep"), func(c *snapshotv1.VolumeSnapshotClass) { c.DeletionPolicy = snapshotv1.VolumeSnapshotContentDelete })
			s := crashstore.New(w.store, crashstore.Crash{After: dies, Arrives: arrives})
			stop := w.startMortal(s)
			settle()
			stop()
			steps = s.Steps()
			w.drop()
			w.start(w.store)
			settle()
			end = w.ends()
		})
		return end, steps
	}
	_, steps := life(1<<30, false)
	require.Greater(t, steps, 25)
	for k := range steps {
		for _, arrives := range []bool{false, true} {
			end, _ := life(k, arrives)
			want := []string{"storage []\n", "claim a []\n", "claim b []\n", "claim c []\n"}
			if len(end) > 4 && k < 40 { // The content that was made by hand stays if it was never bound.
				by := slices.IndexFunc(end, func(line string) bool { return len(line) > 15 && line[:15] == "content by-hand" })
				if by > 0 {
					end = slices.Delete(end, by, by+1)
					want[0] = "storage [old]\n"
				}
			}
			assert.Equal(t, want, end, "died at step %d, which arrived: %v", k, arrives)
		}
	}
}
