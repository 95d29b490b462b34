package snapshottest

import (
	"context"
	"fmt"
	"slices"
	"testing"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/internal/crashstore"
	"github.com/volumekit/volumekit/store"
)

// tell has a controller that is killed at a write make and delete snapshots, and another go on. The middle is before they are deleted.
func tell(w *world, s *crashstore.Store, middle, end []string) (killed bool) {
	w.t.Helper()
	w.bound("c", "")
	w.bound("a", "db")
	content, byHand := w.byHand("p")
	for _, obj := range []store.Object{newClass(snapshotv1.VolumeSnapshotContentDelete), newGroupClass(), content} {
		_, err := w.store.Create(w.t.Context(), obj)
		require.NoError(w.t, err)
	}
	snapshots := []store.Object{byHand, newSnapshot("s", "c"), newGroup("g")}
	for _, obj := range snapshots {
		_, err := w.store.Create(w.t.Context(), obj)
		require.NoError(w.t, err)
	}
	_, stop := w.start(s)
	ctx, cancel := context.WithCancel(w.t.Context())
	next := make(chan struct{})
	go func() {
		defer close(next)
		select {
		case <-s.Crashed():
			stop()
			w.start(w.store)
		case <-ctx.Done():
		}
	}()
	defer func() { cancel(); <-next }()
	w.until("the snapshots are made: "+fmt.Sprint(middle), func() bool { return slices.Equal(middle, w.ends()) })
	for _, obj := range snapshots {
		w.drop(obj)
	}
	w.until("all is gone: "+fmt.Sprint(end), func() bool { return slices.Equal(end, w.ends()) })
	return s.IsCrashed()
}

// testKilled has controllers killed at each write, be it that the write was lost or its answer. The next one comes to the same end.
func testKilled(t *testing.T, makeStore makeStore) {
	bound := "[snapshot.storage.kubernetes.io/volumesnapshot-as-source-protection snapshot.storage.kubernetes.io/volumesnapshot-bound-protection"
	kept := "[snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection] true false"
	claims := []string{"claim a []\n", "claim c []\n"}
	middle := append([]string{
		"storage 3\n",
		"content " + kept + " []\n",
		"content " + kept + " [groupsnapshot.storage.k8s.io/volumeGroupSnapshotHandle]\n",
		"content " + kept + " [volumekit.io/source-volumes]\n",
		"content of a group [groupsnapshot.storage.kubernetes.io/volumegroupsnapshotcontent-bound-protection] false [volumekit.io/source-volumes]\n",
		"group g [groupsnapshot.storage.kubernetes.io/volumegroupsnapshot-bound-protection] true false\n",
		"snapshot of g " + bound + " snapshot.storage.kubernetes.io/volumesnapshot-in-group-protection] true false\n",
		"snapshot p " + bound + "] true false\n", "snapshot s " + bound + "] true false\n",
	}, claims...)
	slices.Sort(middle[1:])
	end := append([]string{"storage 0\n"}, claims...)
	for _, arrives := range []bool{false, true} {
		killed := true
		for k := 0; killed; k++ {
			t.Run(fmt.Sprintf("write %d, which arrived: %v", k, arrives), func(t *testing.T) {
				w := newWorld(t, makeStore(t), fake.PluginOptions{})
				killed = tell(w, crashstore.New(w.store, crashstore.Crash{After: k, Arrives: arrives}), middle, end)
				require.True(t, killed || k > 20, "there are %d writes", k)
			})
			if t.Failed() {
				return
			}
		}
	}
}
