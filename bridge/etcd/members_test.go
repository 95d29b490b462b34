package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/bridge/etcd"
	"github.com/volumekit/volumekit/store"
)

// counting is a volume whose label counts writes, each on top of the one before.
type counting struct {
	store *etcd.Store
	name  string
	// acknowledged is the last number of which the writer was told that it is written.
	acknowledged int
}

// run counts until ctx ends. A write whose answer was lost may have been done: reading again tells.
func (c *counting) run(ctx context.Context) error {
	for ctx.Err() == nil {
		if err := c.add(ctx); err != nil && ctx.Err() == nil && !isPassing(err) {
			return err
		}
	}
	return nil
}

func (c *counting) add(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	pv, err := store.Get[*v1.PersistentVolume](ctx, c.store, "", c.name)
	if err != nil {
		return err
	}
	count, _ := strconv.Atoi(pv.Labels["count"])
	if count < c.acknowledged {
		return fmt.Errorf("%d was written, and %d is read: %w", c.acknowledged, count, errLost)
	}
	pv.Labels = map[string]string{"count": strconv.Itoa(count + 1)}
	if _, err := store.Update(ctx, c.store, pv); err != nil {
		return err
	}
	c.acknowledged = count + 1
	return nil
}

var errLost = errors.New("a write was lost")

// isPassing reports whether an error is what the loss of a member may bring.
func isPassing(err error) bool {
	return !errors.Is(err, errLost) && !errors.Is(err, store.ErrInvalid)
}

// TestNothingIsLostWithAMember stops members and cuts them off, while writers count and watches follow: every number comes once
// and in order, and nothing that was acknowledged is lost.
func TestNothingIsLostWithAMember(t *testing.T) {
	c := newCluster(t)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	writing, stopWriting := context.WithCancel(ctx)
	var running sync.WaitGroup
	var counters []*counting
	var followers []*follower
	for i := range 3 {
		s := c.store(c.clientOf(), "/members")
		counter := &counting{store: s, name: fmt.Sprintf("counter-%d", i)}
		_, err := store.Create(ctx, s, newVolume(counter.name))
		require.NoError(t, err)
		counters = append(counters, counter)
		running.Go(func() { assert.NoError(t, counter.run(writing)) })
		f := &follower{store: s, counts: map[string]int{}, grown: make(chan struct{})}
		followers = append(followers, f)
		running.Go(func() { assert.NoError(t, f.run(ctx)) })
	}
	grow := func(what string) {
		t.Helper()
		for i, f := range followers {
			require.NoError(t, f.await(ctx, counters[i].name, f.count(counters[i].name)+3), what)
		}
	}
	grow("at first")
	for _, who := range []func() int{c.leader, func() int { return (c.leader() + 1) % memberCount }} {
		i := who()
		c.stop(i)
		grow("a member was stopped")
		c.start(i)
		i = who()
		c.part(i)
		grow("a member was cut off")
		c.join()
	}
	grow("all are there again")
	stopWriting()
	for _, counter := range counters {
		pv, err := store.Get[*v1.PersistentVolume](ctx, counter.store, "", counter.name)
		require.NoError(t, err)
		count, err := strconv.Atoi(pv.Labels["count"])
		require.NoError(t, err)
		for _, f := range followers {
			require.NoError(t, f.await(ctx, counter.name, count))
		}
	}
	cancel()
	running.Wait()
}

// follower watches all counters, as a mirror does: it resumes a watch that was closed, and never sees a number twice, or one too
// few.
type follower struct {
	store *etcd.Store

	mu     sync.Mutex
	counts map[string]int
	grown  chan struct{} // closed with the next event
}

func (f *follower) run(ctx context.Context) error {
	items, version, err := store.ListOf[*v1.PersistentVolume](ctx, f.store, "")
	if err != nil {
		return err
	}
	for _, pv := range items {
		f.mu.Lock()
		f.counts[pv.Name], _ = strconv.Atoi(pv.Labels["count"])
		f.mu.Unlock()
	}
	for ctx.Err() == nil {
		events, err := f.store.Watch(ctx, store.PersistentVolumes, "", version)
		if err != nil {
			if !isPassing(err) || errors.Is(err, store.ErrCompacted) {
				return err
			}
			continue
		}
		for event := range events {
			pv, ok := event.Object.(*v1.PersistentVolume)
			if !ok {
				return fmt.Errorf("an event of a %T", event.Object)
			}
			version = pv.ResourceVersion
			if err := f.see(pv); err != nil {
				return err
			}
		}
	}
	return nil
}

func (f *follower) see(pv *v1.PersistentVolume) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	count, _ := strconv.Atoi(pv.Labels["count"])
	if had, known := f.counts[pv.Name]; known && count != had+1 {
		return fmt.Errorf("%s: %d comes after %d", pv.Name, count, had)
	}
	f.counts[pv.Name] = count
	close(f.grown)
	f.grown = make(chan struct{})
	return nil
}

func (f *follower) count(name string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.counts[name]
}

// await waits until a counter was seen to be so far.
func (f *follower) await(ctx context.Context, name string, count int) error {
	for {
		f.mu.Lock()
		seen, grown := f.counts[name], f.grown
		f.mu.Unlock()
		if seen >= count {
			return nil
		}
		select {
		case <-grown:
		case <-ctx.Done():
			return fmt.Errorf("%s is at %d and not at %d: %w", name, seen, count, ctx.Err())
		}
	}
}

// TestCompactionUnderWatches compacts while mirrors follow a store that is written to. They end with what is there.
func TestCompactionUnderWatches(t *testing.T) {
	c := newCluster(t)
	client := c.clientOf()
	s := c.store(client, "/compacted")
	ctx, cancel := context.WithCancel(t.Context())
	var following sync.WaitGroup
	defer following.Wait()
	defer cancel()
	mirror := store.NewMirror[*v1.PersistentVolume](s, store.MirrorOptions{InitialBackoff: 10 * time.Millisecond, MaxBackoff: time.Second})
	changed := make(chan struct{}, 1)
	following.Go(func() {
		mirror.Follow(ctx, func(*v1.PersistentVolume) {
			select {
			case changed <- struct{}{}:
			default:
			}
		})
	})
	stalled, err := s.Watch(ctx, store.PersistentVolumes, "", present(t, s))
	require.NoError(t, err)
	pv, err := store.Create(ctx, s, newVolume("disk"))
	require.NoError(t, err)
	first := pv.ResourceVersion
	for i := range 200 {
		pv.Labels = map[string]string{"count": strconv.Itoa(i)}
		pv, err = store.Update(ctx, s, pv)
		require.NoError(t, err)
		if i%20 == 0 {
			version, err := strconv.ParseInt(pv.ResourceVersion, 10, 64)
			require.NoError(t, err)
			_, err = client.Compact(ctx, version>>10)
			require.NoError(t, err)
		}
	}
	_, err = s.Watch(ctx, store.PersistentVolumes, "", first)
	require.ErrorIs(t, err, store.ErrCompacted)
	for {
		if seen, ok := mirror.Get(store.NameOf(pv)); ok && seen.ResourceVersion == pv.ResourceVersion {
			break
		}
		<-changed
	}
	// A watch that was read late tells all that it tells in order, and is closed where it misses something.
	last := -1
	for event := range stalled {
		seen, ok := event.Object.(*v1.PersistentVolume)
		require.True(t, ok)
		if seen.Labels == nil {
			continue
		}
		count, err := strconv.Atoi(seen.Labels["count"])
		require.NoError(t, err)
		require.Equal(t, last+1, count)
		if last = count; last == 199 {
			break
		}
	}
}

func present(t *testing.T, s store.Store) string {
	t.Helper()
	list, err := s.List(t.Context(), store.PersistentVolumes, "")
	require.NoError(t, err)
	return list.ResourceVersion
}
