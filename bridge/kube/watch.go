package kube

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/volumekit/volumekit/internal/backoff"
	"github.com/volumekit/volumekit/store"
)

// Watch implements [store.Store]. If the API server ends its watch, which happens now and then, or cannot be reached, the watch resumes at
// the same version: no event is lost or repeated. The channel is closed when ctx ends, when the server has no events from that version on
// any more, or when it denies the watch. The goroutine behind the channel ends then too.
func (s *Store) Watch(ctx context.Context, kind schema.GroupVersionKind, namespace, version string) (<-chan store.Event, error) {
	r, err := s.resourceOf(kind, namespace)
	if err = errors.Join(ctx.Err(), err, checkVersion(version)); err != nil {
		return nil, err
	}
	if f := s.feeds[kind]; f != nil {
		if events, err := f.watch(ctx, namespace, version); events != nil || err != nil {
			return events, err
		}
	}
	what := fmt.Sprintf("watch of %s from version %s", kind.Kind, version)
	// A watch of a version that is too old begins like any other, and its first event is the error. A list at that version fails at once.
	probe := s.selected(kind)
	probe.Limit, probe.ResourceVersion, probe.ResourceVersionMatch = 1, version, metav1.ResourceVersionMatchExact
	if _, err = r.list(ctx, probe); err != nil {
		return nil, classify(ctx, what, err)
	}
	w := &follower{store: s, resource: r, kind: kind, at: version, events: make(chan store.Event)}
	ctx, cancel := context.WithCancel(ctx)
	source, err := w.open(ctx)
	if err != nil {
		cancel()
		return nil, classify(ctx, what, err)
	}
	go func() {
		defer close(w.events)
		defer cancel()
		w.run(ctx, source)
	}()
	return w.events, nil
}

// checkVersion refuses versions that no list of an API server has. With an empty version, or zero, a watch would begin anywhere.
func checkVersion(version string) error {
	if n, err := strconv.ParseUint(version, 10, 64); err != nil || n == 0 {
		return fmt.Errorf("version %q is none of an API server: pass that of a list: %w", version, store.ErrInvalid)
	}
	return nil
}

// follower is one watch; its goroutine owns it.
type follower struct {
	store    *Store
	resource resource
	kind     schema.GroupVersionKind
	at       string // the version up to which all events were sent
	events   chan store.Event
}

// open begins a watch of the API server.
func (w *follower) open(ctx context.Context) (watch.Interface, error) {
	options := w.store.selected(w.kind)
	options.ResourceVersion, options.AllowWatchBookmarks = w.at, true
	return w.resource.watch(ctx, options)
}

// run sends the events of source, and of the watches after it.
func (w *follower) run(ctx context.Context, source watch.Interface) {
	for failures := 0; ; {
		at := w.at
		err := w.pass(ctx, source)
		for {
			if ctx.Err() != nil {
				return
			}
			if isForgotten(err) || errors.Is(classify(ctx, "", err), ErrDenied) {
				w.store.logger.InfoContext(ctx, "a watch has ended", "kind", w.kind.Kind, "error", err)
				return
			}
			if failures++; w.at != at {
				failures, at = 0, w.at
			}
			w.store.logger.DebugContext(ctx, "a watch is begun again", "kind", w.kind.Kind, "version", w.at, "error", err)
			pause(ctx, failures)
			if source, err = w.open(ctx); err == nil {
				break
			}
		}
	}
}

// pause waits after so many failures in a row.
func pause(ctx context.Context, failures int) {
	if failures == 0 {
		return
	}
	timer := time.NewTimer(backoff.Policy{Initial: 100 * time.Millisecond, Max: 30 * time.Second}.Delay(failures))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// pass sends the events of one watch of the API server until the watch ends. It returns the error that ended the watch, if any.
func (w *follower) pass(ctx context.Context, source watch.Interface) error {
	defer source.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case event, open := <-source.ResultChan():
			if !open {
				return nil
			}
			if event.Type == watch.Error {
				return apierrors.FromObject(event.Object)
			}
			if err := w.tell(ctx, event); err != nil {
				return err
			}
		}
	}
}

// eventTypes maps the types of events of writes.
var eventTypes = map[watch.EventType]store.EventType{
	watch.Added: store.Added, watch.Modified: store.Modified, watch.Deleted: store.Deleted,
}

// tell sends one event. A bookmark only sets the version.
func (w *follower) tell(ctx context.Context, event watch.Event) error {
	obj, ok := event.Object.(store.Object)
	if !ok {
		return fmt.Errorf("an event of type %q with a %T", event.Type, event.Object)
	}
	version := obj.GetResourceVersion()
	if told, ok := eventTypes[event.Type]; ok {
		obj, err := received(w.store.kinds, obj, nil)
		if err != nil {
			return err
		}
		select {
		case w.events <- store.Event{Type: told, Object: obj}:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	w.at = version
	return nil
}
