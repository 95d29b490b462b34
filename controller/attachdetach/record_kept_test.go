package attachdetach

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// listing is a store without transactions that lists the calls for attachments and volumes.
type listing struct {
	store.Store
	mu    sync.Mutex
	calls []string
}

func (s *listing) note(call string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, call)
}

// taken returns the calls since it was last asked.
func (s *listing) taken() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	calls := s.calls
	s.calls = nil
	return calls
}

func (s *listing) Get(ctx context.Context, key store.Key) (runtime.Object, error) {
	s.note("get " + key.Kind.Kind)
	return s.Store.Get(ctx, key)
}

func (s *listing) Create(ctx context.Context, obj runtime.Object) (runtime.Object, error) {
	s.note("create")
	return s.Store.Create(ctx, obj)
}

func (s *listing) Update(ctx context.Context, obj runtime.Object) (runtime.Object, error) {
	s.note("update")
	return s.Store.Update(ctx, obj)
}

// listingTransactor is the same of a store with transactions, after which lose may lose the answer.
type listingTransactor struct {
	*listing
	transactor store.Transactor
	lose       error
}

func (s listingTransactor) Commit(ctx context.Context, t store.Transaction) ([]runtime.Object, error) {
	s.note("commit")
	objects, err := s.transactor.Commit(ctx, t)
	return objects, errors.Join(err, s.lose)
}

func noNode(types.NodeName) (types.UID, bool) { return "", false }

// intended is a volume in a store that is to be attached.
type intended struct {
	memory *store.Memory
	pv     *v1.PersistentVolume
	intent operationexecutor.Intent
}

func newIntended(t *testing.T) *intended {
	t.Helper()
	memory := store.NewMemory(store.MemoryOptions{})
	pv, err := store.Create(t.Context(), memory, newExclusive("data"))
	require.NoError(t, err)
	return &intended{memory, pv, operationexecutor.Intent{
		Kind: operationexecutor.OpAttach, VolumeName: nameOf("data"), PluginName: fake.DefaultPluginName,
		Spec: volume.NewSpecFromPersistentVolume(pv, false), NodeName: "node-1", DevicePath: "/dev/data",
	}}
}

// change changes the volume in the store: what the intent has of it is older then.
func (i *intended) change(t *testing.T, f func(pv *v1.PersistentVolume)) {
	t.Helper()
	now := i.pv.DeepCopy()
	f(now)
	_, err := store.Update(t.Context(), i.memory, now)
	require.NoError(t, err)
}

func (i *intended) record(t *testing.T) *storagev1.VolumeAttachment {
	t.Helper()
	object, err := store.Get[*storagev1.VolumeAttachment](t.Context(), i.memory, "", recordName(nameOf("data"), anyNode))
	require.NoError(t, err)
	return object
}

// TestARecordIsWrittenTwiceAndNotRead: an attachment costs one write before and one after it; without transactions the volume is read too.
func TestARecordIsWrittenTwiceAndNotRead(t *testing.T) {
	i := newIntended(t)
	calls := &listing{Store: i.memory}
	for name, tt := range map[string]struct {
		store  store.Store
		intend []string
	}{
		"with transactions":    {listingTransactor{listing: calls, transactor: i.memory}, []string{"commit"}},
		"without transactions": {calls, []string{"create", "get PersistentVolume"}},
	} {
		t.Run(name, func(t *testing.T) {
			records := newAttachmentRecords(tt.store, noNode)
			require.NoError(t, records.Intend(t.Context(), i.intent))
			assert.Equal(t, tt.intend, calls.taken())
			require.NoError(t, records.Conclude(t.Context(), i.intent, operationexecutor.IntentDone))
			assert.Equal(t, []string{"update"}, calls.taken())
			object := i.record(t)
			assert.True(t, object.Status.Attached)
			assert.Equal(t, "/dev/data", object.Status.AttachmentMetadata[metadataDevicePath])
			require.NoError(t, store.Delete(t.Context(), i.memory, object))
		})
	}
}

// TestAVolumeThatHasChangedIsLookedAt: what has changed since the volume was seen decides, and not that it has changed.
func TestAVolumeThatHasChangedIsLookedAt(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(pv *v1.PersistentVolume)
		err    error
	}{
		"in what does not matter": {func(pv *v1.PersistentVolume) { pv.Labels = map[string]string{"a": "b"} }, nil},
		"it is being reclaimed":   {func(pv *v1.PersistentVolume) { pv.Status.Phase = v1.VolumeReleased }, store.ErrConflict},
		"it is another claim's": {func(pv *v1.PersistentVolume) {
			pv.Spec.ClaimRef = &v1.ObjectReference{Namespace: "default", Name: "other", UID: "other"}
		}, store.ErrConflict},
	} {
		t.Run(name, func(t *testing.T) {
			i := newIntended(t)
			i.change(t, tt.change)
			err := newAttachmentRecords(i.memory, noNode).Intend(t.Context(), i.intent)
			require.ErrorIs(t, err, tt.err)
		})
	}
	t.Run("it was known to be reclaimed", func(t *testing.T) {
		i := newIntended(t)
		i.change(t, func(pv *v1.PersistentVolume) { pv.Status.Phase = v1.VolumeReleased })
		pv, err := store.Get[*v1.PersistentVolume](t.Context(), i.memory, "", "data")
		require.NoError(t, err)
		i.intent.Spec = volume.NewSpecFromPersistentVolume(pv, false)
		require.ErrorIs(t, newAttachmentRecords(i.memory, noNode).Intend(t.Context(), i.intent), store.ErrConflict)
	})
}

// TestARecordWhoseAnswerWasLostIsFoundAgain: the intent was not recorded for certain, so the record is removed, or taken when it is
// wanted once more.
func TestARecordWhoseAnswerWasLostIsFoundAgain(t *testing.T) {
	i := newIntended(t)
	errLost := errors.New("no answer")
	lossy := &listingTransactor{listing: &listing{Store: i.memory}, transactor: i.memory, lose: errLost}
	records := newAttachmentRecords(lossy, noNode)
	require.ErrorIs(t, records.Intend(t.Context(), i.intent), errLost)
	a := attachment{nameOf("data"), "node-1"}
	end, left := records.obsoleteRecords.beginRemoval(a)
	require.True(t, left, "it is to be removed")
	end(false)
	before := i.record(t)
	require.NoError(t, records.Intend(t.Context(), i.intent))
	assert.Equal(t, before.UID, i.record(t).UID)
	require.NoError(t, records.Conclude(t.Context(), i.intent, operationexecutor.IntentForgotten))
	_, err := store.Get[*storagev1.VolumeAttachment](t.Context(), i.memory, "", before.Name)
	require.ErrorIs(t, err, store.ErrNotFound)
	assert.Empty(t, records.names)
}

// TestARecordThatChangedMeanwhileIsReadAgain: others may write the record while the volume is being attached, or delete it.
func TestARecordThatChangedMeanwhileIsReadAgain(t *testing.T) {
	for name, change := range map[string]func(t *testing.T, i *intended){
		"it was written": func(t *testing.T, i *intended) {
			t.Helper()
			object := i.record(t)
			object.Labels = map[string]string{"a": "b"}
			_, err := store.Update(t.Context(), i.memory, object)
			require.NoError(t, err)
		},
		"it was deleted": func(t *testing.T, i *intended) {
			t.Helper()
			require.NoError(t, store.Delete(t.Context(), i.memory, i.record(t)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			i := newIntended(t)
			records := newAttachmentRecords(i.memory, noNode)
			require.NoError(t, records.Intend(t.Context(), i.intent))
			change(t, i)
			require.NoError(t, records.Conclude(t.Context(), i.intent, operationexecutor.IntentDone))
			assert.True(t, i.record(t).Status.Attached)
		})
	}
}

// gated is a store whose transactions wait, and are counted, until it is opened.
type gated struct {
	*store.Memory

	waiting atomic.Int64
	opened  chan struct{}
}

func (s *gated) Commit(ctx context.Context, t store.Transaction) ([]runtime.Object, error) {
	s.waiting.Add(1)
	<-s.opened
	return s.Memory.Commit(ctx, t)
}

// TestTheEndOfAnOperationDoesNotWaitBehindIntents: of many intents some are put on record at a time, and the others are given up with
// their contexts. An end is written meanwhile.
func TestTheEndOfAnOperationDoesNotWaitBehindIntents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := newIntended(t)
		s := &gated{Memory: i.memory, opened: make(chan struct{})}
		records := newAttachmentRecords(s, noNode)
		impatient, giveUp := context.WithCancelCause(t.Context())
		var intending sync.WaitGroup
		given := make(chan error, 2*maxIntents)
		for n := range 2 * maxIntents {
			intent := i.intent
			intent.VolumeName = nameOf(fmt.Sprintf("data-%d", n))
			intending.Go(func() { given <- records.Intend(impatient, intent) })
		}
		synctest.Wait()
		assert.Equal(t, int64(maxIntents), s.waiting.Load())
		require.NoError(t, records.Conclude(t.Context(), i.intent, operationexecutor.IntentDone))
		assert.True(t, i.record(t).Status.Attached)
		errImpatient := errors.New("no more time")
		giveUp(errImpatient)
		for range maxIntents {
			require.ErrorIs(t, <-given, errImpatient)
		}
		close(s.opened)
		intending.Wait()
	})
}

// TestARecordThatIsBeingRemovedIsNotForgotten: who wants it does not wait for ever until it is removed, and then it is to be removed still.
func TestARecordThatIsBeingRemovedIsNotForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := newIntended(t)
		records := newAttachmentRecords(i.memory, noNode)
		a := attachment{nameOf("data"), "node-1"}
		records.markObsolete(a)
		end, left := records.beginRemoval(a)
		require.True(t, left)
		impatient, giveUp := context.WithCancel(t.Context())
		intended := make(chan error)
		go func() { intended <- records.Intend(impatient, i.intent) }()
		synctest.Wait()
		giveUp()
		require.ErrorIs(t, <-intended, context.Canceled)
		end(false)
		_, left = records.beginRemoval(a)
		assert.True(t, left)
	})
}
