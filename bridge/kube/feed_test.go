package kube

import (
	"context"
	"fmt"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/volumekit/volumekit/store"
)

// stillInformer is an informer that has listed and tells what the test says.
type stillInformer struct {
	cache.SharedInformer
	at      string
	stopped bool
	handler cache.ResourceEventHandler
}

func (i *stillInformer) IsStopped() bool                 { return i.stopped }
func (i *stillInformer) LastSyncResourceVersion() string { return i.at }

func (i *stillInformer) AddEventHandler(h cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	i.handler = h
	return synced{}, nil
}

type synced struct {
	cache.ResourceEventHandlerRegistration
}

func (synced) HasSynced() bool { return true }

func volumeAt(name string, uid types.UID, version int) *v1.PersistentVolume {
	return &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name, UID: uid, ResourceVersion: strconv.Itoa(version)}}
}

// newFeed returns a feed that has begun at version 10, and its informer.
func newFeed(t *testing.T) (*feed, *stillInformer) {
	t.Helper()
	informer := &stillInformer{at: "10"}
	f := &feed{kind: store.PersistentVolumes, informer: informer}
	require.NoError(t, f.ready(t.Context()))
	return f, informer
}

func watchFrom(t *testing.T, f *feed, version int) <-chan store.Event {
	t.Helper()
	events, err := f.watch(t.Context(), "", strconv.Itoa(version))
	require.NoError(t, err)
	return events
}

func requireNext(t *testing.T, events <-chan store.Event, want string) {
	t.Helper()
	event, open := <-events
	require.True(t, open, "the watch has ended")
	meta := event.Object.(store.Object)
	require.Equal(t, want, fmt.Sprintf("%s %s %s", event.Type, meta.GetName(), meta.GetResourceVersion()))
}

func TestAFeedTellsEveryWatchEachWriteOnce(t *testing.T) {
	f, informer := newFeed(t)
	informer.handler.OnAdd(volumeAt("listed", "a", 9), true)
	informer.handler.OnAdd(volumeAt("disk", "b", 11), false)
	one, other := watchFrom(t, f, 10), watchFrom(t, f, 11)
	requireNext(t, one, "Added disk 11")
	shared := volumeAt("disk", "b", 12)
	informer.handler.OnUpdate(volumeAt("disk", "b", 11), shared)
	informer.handler.OnUpdate(shared, shared) // a resync
	informer.handler.OnDelete(volumeAt("disk", "b", 13))
	for _, events := range []<-chan store.Event{one, other} {
		requireNext(t, events, "Modified disk 12")
		requireNext(t, events, "Deleted disk 13")
	}
	require.Empty(t, shared.Kind, "what the informer has is shared, and not written to")
	require.Nil(t, watchFrom(t, f, 9), "what was before the log is asked of the server")
}

// TestAFeedThatMissedSomethingEndsItsWatches has the informer list again.
func TestAFeedThatMissedSomethingEndsItsWatches(t *testing.T) {
	for name, tell := range map[string]func(h cache.ResourceEventHandler){
		"a deletion": func(h cache.ResourceEventHandler) {
			h.OnDelete(cache.DeletedFinalStateUnknown{Key: "disk", Obj: volumeAt("disk", "b", 11)})
		},
		"another object of the name": func(h cache.ResourceEventHandler) { h.OnUpdate(volumeAt("disk", "b", 11), volumeAt("disk", "c", 15)) },
		"in no order":                func(h cache.ResourceEventHandler) { h.OnAdd(volumeAt("other", "d", 11), false) },
	} {
		t.Run(name, func(t *testing.T) {
			f, informer := newFeed(t)
			informer.handler.OnAdd(volumeAt("disk", "b", 11), false)
			events := watchFrom(t, f, 10)
			requireNext(t, events, "Added disk 11")
			informer.at = "20"
			tell(informer.handler)
			_, open := <-events
			require.False(t, open)
			require.Nil(t, watchFrom(t, f, 19))
			events = watchFrom(t, f, 20)
			informer.handler.OnAdd(volumeAt("late", "e", 18), false) // The rest of that list, which the reader has read itself.
			informer.handler.OnAdd(volumeAt("next", "f", 21), false)
			requireNext(t, events, "Added next 21")
		})
	}
}

func TestAFeedForgetsAndEndsSlowWatches(t *testing.T) {
	f, informer := newFeed(t)
	slow := watchFrom(t, f, 10)
	at := 10
	for range 3 * remembered {
		at++
		informer.handler.OnAdd(volumeAt("disk", "b", at), false)
	}
	require.Less(t, len(f.log), 2*remembered)
	require.Nil(t, watchFrom(t, f, 10))
	events := watchFrom(t, f, at-1)
	requireNext(t, events, "Added disk "+strconv.Itoa(at))
	taken := 0
	for range slow {
		taken++
	}
	require.Less(t, taken, 3*remembered)
}

func TestAFeedWithoutItsInformer(t *testing.T) {
	f, informer := newFeed(t)
	informer.stopped = true
	require.ErrorIs(t, f.ready(t.Context()), errStopped)
	_, err := f.watch(t.Context(), "", "10")
	require.ErrorIs(t, err, errStopped)

	idle := cache.NewSharedInformer(&cache.ListWatch{}, &v1.PersistentVolume{}, 0)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, (&feed{kind: store.PersistentVolumes, informer: idle}).ready(ctx), context.Canceled)
}
