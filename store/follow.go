package store

import (
	"context"
	"log/slog"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/volumekit/volumekit/internal/backoff"
)

// Follower receives the objects of one kind from [Follow]. Its methods are called one after the other.
type Follower[T Object] interface {
	// Listed is called with all objects at the beginning, and again for each new watch.
	Listed(objects []T)
	// Changed is called for each later event. obj is the object after the event; for a deletion it is the last version.
	Changed(event EventType, obj T)
}

// Follow lists and watches the objects of type T in s until ctx ends. It keeps no objects; [Mirror] does. When a watch
// ends, also because the store has compacted what the watch needs, Follow lists again. After a short watch or a failure it
// pauses first.
func Follow[T Object](ctx context.Context, s Store, to Follower[T], options MirrorOptions) {
	if options.Logger == nil {
		options.Logger = slog.New(slog.DiscardHandler)
	}
	follow(ctx, s, options, follower[T]{
		beginList: func() {},
		listed:    func(objects []T, _ string) { to.Listed(objects) },
		changed:   to.Changed,
	})
}

// follower is a Follower that also learns when a list begins, and its version.
type follower[T Object] struct {
	beginList func()
	listed    func(objects []T, version string)
	changed   func(event EventType, obj T)
}

func follow[T Object](ctx context.Context, s Store, options MirrorOptions, to follower[T]) {
	var zero T
	kind, _ := KindsOf(s).KindOf(zero) // If this fails, the list below fails too, and reports it.
	failures := 0
	policy := backoff.Policy{Initial: options.InitialBackoff, Max: options.MaxBackoff, Jitter: options.Jitter}.WithDefaults()
	for ctx.Err() == nil {
		began := time.Now()
		received, err := followOnce(ctx, s, kind, to)
		if err == nil && time.Since(began) >= policy.Initial {
			failures = 0
			continue
		}
		if received {
			failures = 0
		}
		failures++
		if err != nil && ctx.Err() == nil {
			options.Logger.WarnContext(ctx, "reading the store will be tried again", "kind", kind.Kind, "error", err)
		}
		pause(ctx, policy.Delay(failures))
	}
}

// followOnce lists and watches until the watch ends, which is not an error. It reports whether an event was received.
func followOnce[T Object](ctx context.Context, s Store, kind schema.GroupVersionKind, to follower[T]) (received bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	to.beginList()
	items, version, err := ListOf[T](ctx, s, "")
	if err != nil {
		return false, err
	}
	events, err := s.Watch(ctx, kind, "", version)
	if err != nil {
		return false, err
	}
	to.listed(items, version)
	for event := range events {
		received = true
		if obj, ok := event.Object.(T); ok {
			to.changed(event.Type, obj)
		}
	}
	return received, nil
}
