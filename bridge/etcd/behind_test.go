package etcd

import (
	"fmt"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/store"
)

// TestWatchOfAReceiverThatDoesNotReadEnds: what waits for a receiver is bounded, however much is written meanwhile.
func TestWatchOfAReceiverThatDoesNotReadEnds(t *testing.T) {
	s, err := New(&clientv3.Client{}, Options{Prefix: "/test", Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	w := &watch{store: s, kind: store.PersistentVolumes, events: make(chan store.Event)}
	changes, ended := make(chan clientv3.WatchResponse), make(chan struct{})
	go func() {
		defer close(ended)
		w.run(t.Context(), changes)
	}()
	value, err := s.codec.encode(lastPlace, &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "disk"}})
	require.NoError(t, err)
	change := func(revision int64) clientv3.WatchResponse {
		kv := &mvccpb.KeyValue{
			Key: []byte(s.keys.ofObject(store.Key{Kind: store.PersistentVolumes, Name: "disk"})), Value: []byte(value),
			CreateRevision: 1, ModRevision: revision,
		}
		return clientv3.WatchResponse{Events: []*clientv3.Event{{Type: mvccpb.PUT, Kv: kv}}}
	}
	changes <- change(2)
	event := <-w.events
	assert.Equal(t, after(2).String(), event.Object.(store.Object).GetResourceVersion())
	for revision := range int64(maxBacklog) + 1 {
		changes <- change(revision + 3)
	}
	<-ended
}

// TestWatchTellsWhatItHasBeforeItEnds: events that came before etcd's client ended the watch are told.
func TestWatchTellsWhatItHasBeforeItEnds(t *testing.T) {
	s, err := New(&clientv3.Client{}, Options{Prefix: "/test"})
	require.NoError(t, err)
	w := &watch{store: s, kind: store.PersistentVolumes, events: make(chan store.Event)}
	value, err := s.codec.encode(lastPlace, &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "disk"}})
	require.NoError(t, err)
	changes := make(chan clientv3.WatchResponse, 1)
	changes <- clientv3.WatchResponse{Events: []*clientv3.Event{{Type: mvccpb.PUT, Kv: &mvccpb.KeyValue{
		Key: []byte(s.keys.ofObject(store.Key{Kind: store.PersistentVolumes, Name: "disk"})), Value: []byte(value), CreateRevision: 2, ModRevision: 2,
	}}}}
	close(changes)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		w.run(t.Context(), changes)
	}()
	assert.Equal(t, store.Added, (<-w.events).Type)
	<-ended
}

// TestVersionBeforeAllRevisions: what comes after no write at all is every write, and not what comes from now on.
func TestVersionBeforeAllRevisions(t *testing.T) {
	for _, text := range []string{"0", "5"} {
		v, err := parseVersion(text)
		require.NoError(t, err)
		assert.Equal(t, int64(1), v.next(), text)
	}
}

// TestErrorsSayWhatToDo has errors of etcd come with the sentinels of a store.
func TestErrorsSayWhatToDo(t *testing.T) {
	for told, want := range map[error]error{
		rpctypes.ErrNoSpace: store.ErrFull, rpctypes.ErrTooManyOps: store.ErrInvalid, rpctypes.ErrRequestTooLarge: store.ErrInvalid,
	} {
		err := classify(t.Context(), "write", fmt.Errorf("wrapped: %w", told))
		require.ErrorIs(t, err, want)
		require.ErrorIs(t, err, told)
	}
}
