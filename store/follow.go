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
	// Listed is called with all objects at the beginning, and again whenever a new watch has begun.
	Listed(objects []T)
	// Changed is called for each event after that, with the object as it is, or as it was last.
	Changed(event EventType, obj T)
}

// Follow lists and watches the objects of type T in s until ctx ends, and keeps none of them: see [Mirror] for that. It lists again
// whenever the watch ends, also when the store has compacted what the watch needs, after a pause when that was soon.
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
	kind, _ := KindOf(zero) // An error comes with the list.
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
			options.Logger.WarnContext(ctx, "reading the store will be tried again", "kind", kind.Kind, "err", err)
		}
		pause(ctx, policy.Delay(failures))
	}
}

// followOnce lists and watches until the watch ends, which is no error. It reports whether an event came.
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
