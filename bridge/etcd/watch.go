package etcd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/volumekit/volumekit/store"
)

// Watch implements [store.Store]. It goes on through another member when its own is lost. The goroutine behind the channel ends
// with ctx, and when the watch cannot go on.
func (s *Store) Watch(ctx context.Context, kind schema.GroupVersionKind, namespace, from string) (<-chan store.Event, error) {
	if _, err := s.kinds.Namespaced(kind); err != nil {
		return nil, err
	}
	at, err := parseVersion(from)
	if err != nil {
		return nil, err
	}
	if err := s.remembers(ctx, at.next()); err != nil {
		return nil, fmt.Errorf("watch of %s from version %s: %w", kind.Kind, from, err)
	}
	// A member without a leader, which may know nothing new for long, says so.
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	w := &watch{store: s, kind: kind, namespace: namespace, at: at, events: make(chan store.Event)}
	changes := s.client.Watch(ctx, s.keys.ofKind(kind), clientv3.WithPrefix(), clientv3.WithRev(at.next()))
	go func() {
		defer close(w.events)
		defer cancel()
		w.run(ctx, changes)
	}()
	return w.events, nil
}

// remembers returns nil when all that was written from a revision on is known. Otherwise the error matches store.ErrCompacted.
func (s *Store) remembers(ctx context.Context, revision int64) error {
	_, err := s.get(ctx, s.keys.prefix, clientv3.WithRev(revision))
	if err == nil {
		return nil
	}
	if errors.Is(err, rpctypes.ErrFutureRev) {
		return s.isNext(ctx, revision)
	}
	if errors.Is(err, rpctypes.ErrCompacted) {
		return store.ErrCompacted
	}
	return classify(ctx, "read", err)
}

// isNext returns nil when a revision comes at the latest with the next write. One beyond that is of an etcd that was lost, and
// replaced by a backup.
func (s *Store) isNext(ctx context.Context, revision int64) error {
	response, err := s.get(ctx, s.keys.prefix)
	if err != nil {
		return classify(ctx, "read", err)
	}
	if revision > response.Header.Revision+1 {
		return store.ErrCompacted
	}
	return nil
}

// watch is one watch; its goroutine owns it.
type watch struct {
	store     *Store
	kind      schema.GroupVersionKind
	namespace string
	at        version // of the last write that was told
	events    chan store.Event
}

// maxBacklog is how many events wait for a receiver. (etcd's client would keep any number.)
const maxBacklog = 1 << 14

// run tells changes until ctx ends, or no more come, or the receiver is too far behind.
func (w *watch) run(ctx context.Context, changes clientv3.WatchChan) {
	var waiting []store.Event
	for changes != nil || len(waiting) > 0 {
		var events chan<- store.Event
		var first store.Event
		if len(waiting) > 0 {
			events, first = w.events, waiting[0]
		}
		select {
		case <-ctx.Done():
			return
		case events <- first:
			waiting = waiting[1:]
		case response, open := <-changes:
			told, err := w.eventsOf(ctx, response)
			if !open {
				err = errEnded
			}
			waiting = append(waiting, told...)
			if len(waiting) > maxBacklog {
				err = fmt.Errorf("its receiver is %d events behind", len(waiting))
				waiting = nil
			}
			if err != nil {
				w.store.logger.InfoContext(ctx, "a watch ends", "kind", w.kind.Kind, "error", err)
				changes = nil
			}
		}
	}
}

// errEnded says that etcd's client tells no more.
var errEnded = errors.New("the client has ended it")

// eventsOf returns what a response tells. An error, behind its last event, is the end of the watch.
func (w *watch) eventsOf(ctx context.Context, response clientv3.WatchResponse) ([]store.Event, error) {
	if err := response.Err(); err != nil {
		return nil, err
	}
	var events []store.Event
	for changes := response.Events; len(changes) > 0; {
		revision := changes[0].Kv.ModRevision
		end := slices.IndexFunc(changes, func(c *clientv3.Event) bool { return c.Kv.ModRevision != revision })
		if end < 0 {
			end = len(changes) // etcd sends a revision as a whole.
		}
		told, err := w.eventsAt(ctx, changes[:end])
		events = append(events, told...)
		if err != nil {
			return events, err
		}
		changes = changes[end:]
	}
	return events, nil
}

// eventsAt returns what the changes of one revision tell.
func (w *watch) eventsAt(ctx context.Context, changes []*clientv3.Event) ([]store.Event, error) {
	if !slices.ContainsFunc(changes, func(c *clientv3.Event) bool { return c.Type != mvccpb.DELETE }) {
		return w.deletionsAt(ctx, changes)
	}
	var events []store.Event
	for _, change := range changes {
		event := w.eventOf(change)
		if event == "" {
			continue // The key of what another change of the same transaction tells to be deleted.
		}
		obj, at, err := w.store.codec.decode(w.kind, change.Kv.Value, change.Kv.ModRevision)
		if err != nil {
			return events, err
		}
		events = w.tell(events, event, obj, at)
	}
	return events, nil
}

// deletionsAt tells of objects that were deleted while etcd was full, without a key that says what they were last: they are read as
// they were before. Where a compaction has taken that, the watch ends.
func (w *watch) deletionsAt(ctx context.Context, changes []*clientv3.Event) ([]store.Event, error) {
	objects := slices.DeleteFunc(slices.Clone(changes), func(c *clientv3.Event) bool { return !w.isObject(c) })
	var events []store.Event
	for i, change := range objects {
		at := version{change.Kv.ModRevision, int64(i)}
		if i == len(objects)-1 {
			at.place = lastPlace
		}
		if w.at.covers(at) {
			continue
		}
		before, err := w.store.get(ctx, string(change.Kv.Key), clientv3.WithRev(at.revision-1))
		if err != nil {
			return events, err
		}
		if len(before.Kvs) == 0 {
			return events, fmt.Errorf("%q was deleted at revision %d and was not there before", change.Kv.Key, at.revision)
		}
		obj, _, err := w.store.codec.decode(w.kind, before.Kvs[0].Value, before.Kvs[0].ModRevision)
		if err != nil {
			return events, err
		}
		obj.SetResourceVersion(at.String())
		events = w.tell(events, store.Deleted, obj, at)
	}
	return events, nil
}

// tell appends the event of a write at a version, unless it is known or of another namespace.
func (w *watch) tell(events []store.Event, event store.EventType, obj store.Object, at version) []store.Event {
	if w.at.covers(at) {
		return events
	}
	w.at = at
	if w.namespace == "" || obj.GetNamespace() == w.namespace {
		events = append(events, store.Event{Type: event, Object: obj})
	}
	return events
}

// isObject reports whether a change is of the key of an object.
func (w *watch) isObject(change *clientv3.Event) bool {
	return strings.HasPrefix(string(change.Kv.Key), w.store.keys.ofObjects(w.kind, ""))
}

// eventOf returns what a change of a key tells; empty when nothing.
func (w *watch) eventOf(change *clientv3.Event) store.EventType {
	switch {
	case change.Type == mvccpb.DELETE:
		return ""
	case !w.isObject(change):
		return store.Deleted
	case change.IsCreate():
		return store.Added
	}
	return store.Modified
}
