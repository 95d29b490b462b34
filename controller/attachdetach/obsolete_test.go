package attachdetach

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/store"
)

var errLost = errors.New("the answer was lost")

// losing is a store whose writes of VolumeAttachments fail so many times: deletions before they are done, creations after that.
type losing struct {
	store.Store

	mu                   sync.Mutex
	deletions, creations int
}

func (s *losing) one(n *int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	*n--
	return *n >= 0
}

func (s *losing) Create(ctx context.Context, obj runtime.Object) (runtime.Object, error) {
	created, err := s.Store.Create(ctx, obj)
	if _, is := obj.(*storagev1.VolumeAttachment); is && s.one(&s.creations) {
		return nil, errLost
	}
	return created, err
}

func (s *losing) Delete(ctx context.Context, key store.Key, p store.Preconditions) error {
	if key.Kind == store.VolumeAttachments && s.one(&s.deletions) {
		return errLost
	}
	return s.Store.Delete(ctx, key, p)
}

// A record that could not be removed would keep its volume from being deleted for ever.
func TestTheRecordOfWhatIsDetachedIsRemovedLater(t *testing.T) {
	inWorld(t, []string{"node-1"}, []string{"data"}, func(t *testing.T, w *world) {
		c, _ := w.start(&losing{Store: w.store, deletions: 3})
		w.delete(w.run("web", "node-1", "data"))
		assert.Empty(t, w.nodesOf("data"))
		assert.Equal(t, []string{"data node-1"}, w.records())
		time.Sleep(time.Minute)
		idle()
		assert.Empty(t, w.records())
		assert.Empty(t, c.records.marks)
	})
}

// A volume is not attached while it is unknown whether its record was made. When it is known, no pod needs the volume any more.
func TestTheRecordOfWhatWasNeverAttachedIsRemoved(t *testing.T) {
	inWorld(t, []string{"node-1"}, []string{"data"}, func(t *testing.T, w *world) {
		w.start(&losing{Store: w.store, creations: 1, deletions: 1})
		w.delete(w.run("web", "node-1", "data"))
		assert.Equal(t, []string{"data node-1"}, w.records())
		assert.Empty(t, w.calls(fake.MethodAttach))
		time.Sleep(time.Minute)
		idle()
		assert.Empty(t, w.records())
	})
}

// A volume that is attached again before the old record could be removed keeps it.
func TestTheRecordOfWhatIsAttachedAgainStays(t *testing.T) {
	inWorld(t, []string{"node-1"}, []string{"data"}, func(t *testing.T, w *world) {
		c, _ := w.start(&losing{Store: w.store, deletions: 1})
		w.delete(w.run("web", "node-1", "data"))
		w.run("web", "node-1", "data")
		time.Sleep(time.Hour)
		idle()
		assert.Equal(t, []types.NodeName{"node-1"}, w.nodesOf("data"))
		assert.Equal(t, []string{"data node-1"}, w.records())
		assert.Empty(t, c.records.marks)
	})
}

// A record that may have been made stays when the volume is attached.
func TestTheRecordOfWhatIsAttachedIsNoLeftover(t *testing.T) {
	inWorld(t, []string{"node-1"}, []string{"data"}, func(t *testing.T, w *world) {
		forgetful := &losing{Store: w.store}
		w.start(forgetful)
		pod := w.run("web", "node-1", "data")
		w.delete(&storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: recordName(nameOf("data"), anyNode)}})
		forgetful.creations = 1
		w.delete(pod) // The intent to detach it is written again, and the answer to that is lost.
		assert.Equal(t, []types.NodeName{"node-1"}, w.nodesOf("data"))
		assert.Equal(t, []string{"data node-1"}, w.records())
		time.Sleep(time.Minute)
		idle()
		assert.Empty(t, w.nodesOf("data"))
		assert.Empty(t, w.records())
	})
}

// A caller that needs a record waits for the end of its removal, and then keeps it.
func TestARecordIsNotRemovedBeneathWhoWantsIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, a := newObsoleteRecords(), attachment{"v", "n"}
		defer l.queue.Stop()
		l.markObsolete(a)
		end, left := l.beginRemoval(a)
		require.True(t, left)
		got := make(chan error, 1)
		go func() { got <- l.keep(t.Context(), a) }()
		synctest.Wait()
		assert.Empty(t, got)
		end(true)
		require.NoError(t, <-got)
		_, left = l.beginRemoval(a)
		assert.False(t, left)
	})
}
