package leader_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/controller/leader"
	"github.com/volumekit/volumekit/store"
)

var lease = types.NamespacedName{Namespace: "kube-system", Name: "volumes"}

// cut is a store whose leases cannot be renewed while it is cut off.
type cut struct {
	*store.Memory

	mu  sync.Mutex
	off bool
}

func (c *cut) set(off bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.off = off
}

func (c *cut) Update(ctx context.Context, obj runtime.Object) (runtime.Object, error) {
	c.mu.Lock()
	off := c.off
	c.mu.Unlock()
	if _, renews := obj.(*coordinationv1.Lease); renews && off {
		return nil, errors.New("no route to host")
	}
	return c.Memory.Update(ctx, obj)
}

// plain has neither leases nor transactions of its own.
type plain struct{ store.Store }

func volumeOf(name string) *v1.PersistentVolume {
	return &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

// candidate stands by until stop is called. leads gets the store of each time that it leads; it leads until its context ends.
func candidate(t *testing.T, s store.Store, holder string) (leads <-chan store.Store, stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	led, ended := make(chan store.Store, 10), make(chan error, 1)
	go func() {
		ended <- leader.Run(ctx, s, leader.Options{Name: lease, Holder: holder}, func(ctx context.Context, s store.Store) error {
			led <- s
			<-ctx.Done()
			return nil
		})
	}()
	stop = sync.OnceValue(func() error { cancel(); return <-ended })
	t.Cleanup(func() { assert.NoError(t, stop()) })
	return led, stop
}

// One of several leads at a time, and the next one as soon as it ends.
func TestTheNextLeadsWhenTheLeaderEnds(t *testing.T) {
	for name, s := range map[string]func() store.Store{
		"with tokens":  func() store.Store { return store.NewMemory(store.MemoryOptions{}) },
		"by the clock": func() store.Store { return plain{store.NewMemory(store.MemoryOptions{})} },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := s()
				first, stop := candidate(t, s, "first")
				leading := <-first
				second, _ := candidate(t, s, "second")
				time.Sleep(time.Hour)
				assert.Empty(t, second)
				_, err := leading.Create(t.Context(), volumeOf("a"))
				require.NoError(t, err)
				require.NoError(t, stop())
				<-second
				_, err = leading.Create(t.Context(), volumeOf("b"))
				require.ErrorIs(t, err, store.ErrLeaseLost)
			})
		})
	}
}

// A leader that is cut off leads no more, and its writes are refused, before another leads; it stands by again.
func TestWhoIsCutOffWritesNothingMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := store.NewMemory(store.MemoryOptions{})
		wire := &cut{Memory: memory}
		first, _ := candidate(t, wire, "first")
		old := <-first
		second, _ := candidate(t, memory, "second")
		wire.set(true)
		now := <-second
		pv, err := store.Create(t.Context(), now, volumeOf("a"))
		require.NoError(t, err)
		for verb, write := range map[string]func() error{
			"create": func() error { _, err := old.Create(t.Context(), volumeOf("b")); return err },
			"update": func() error { _, err := store.Update(t.Context(), old, pv); return err },
			"delete": func() error { return store.Delete(t.Context(), old, pv) },
			"commit": func() error {
				transactor, ok := old.(store.Transactor)
				require.True(t, ok)
				_, err := transactor.Commit(t.Context(), store.Transaction{Writes: []store.Write{store.ToCreate(volumeOf("b"))}})
				return err
			},
		} {
			require.ErrorIs(t, write(), store.ErrLeaseLost, verb)
		}
		_, err = store.Get[*v1.PersistentVolume](t.Context(), old, "", "a")
		require.NoError(t, err, "it may read")
		wire.set(false)
		time.Sleep(time.Hour)
		assert.Empty(t, first, "it stands by")
	})
}

// What a leader returns by itself ends Run, and frees the lease.
func TestTheErrorOfALeaderIsReturned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := store.NewMemory(store.MemoryOptions{})
		for i := range 3 {
			failed := fmt.Errorf("failure %d", i)
			err := leader.Run(t.Context(), s, leader.Options{Name: lease, Holder: fmt.Sprint(i)},
				func(context.Context, store.Store) error { return failed })
			require.ErrorIs(t, err, failed)
		}
	})
}

func TestRunNeedsNames(t *testing.T) {
	err := leader.Run(t.Context(), store.NewMemory(store.MemoryOptions{}), leader.Options{Name: lease}, nil)
	require.ErrorIs(t, err, store.ErrInvalid)
}
