package work

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/store"
)

// ErrAwaited says that an item waits for an answer, which queues it again. It is no failure.
var ErrAwaited = errors.New("an answer is awaited")

// CallError is the failure of a plugin's call for the object of UID. The plugin is not called again before the back-off
// ends, whatever happens to the object.
type CallError struct {
	// UID is that of the object, Err the cause.
	UID types.UID
	Err error
}

// Error returns the text of the cause.
func (e *CallError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *CallError) Unwrap() error { return e.Err }

// heldError says that a plugin must not be called yet.
type heldError struct{ until time.Time }

func (e *heldError) Error() string {
	return "waits until " + e.until.Format(time.RFC3339) + " because the last attempt failed"
}

// errBusy says that an item waits for the end of another item's sync, which queues it again.
var errBusy = errors.New("another worker has it")

// IsFailure reports whether to log the error of a sync: the item waits neither for a back-off, nor for an answer, nor for another
// item.
func IsFailure(err error) bool {
	var held *heldError
	return err != nil && !errors.As(err, &held) && !errors.Is(err, ErrAwaited) && !errors.Is(err, errBusy)
}

// LogRetry logs the failure of a sync that is retried: as a warning, or at the level debug if it is a write conflict or matches one of
// the expected errors. It logs nothing after ctx has ended, or if err is no failure.
func LogRetry(ctx context.Context, logger *slog.Logger, item Item, err error, expected ...error) {
	if !IsFailure(err) || ctx.Err() != nil {
		return
	}
	level := slog.LevelWarn
	if errors.Is(err, store.ErrConflict) || slices.ContainsFunc(expected, func(e error) bool { return errors.Is(err, e) }) {
		level = slog.LevelDebug
	}
	logger.Log(ctx, level, "will be tried again", "kind", item.Kind, "name", item.Name.String(), "error", err)
}

// AwaitChange returns nil if an event will report a change of obj, which was read from the store. Otherwise it returns
// an error with which the queue retries the item soon.
func AwaitChange[T store.Object](m *store.Mirror[T], obj T) error {
	if known, there := m.Get(store.NameOf(obj)); there && known.GetUID() == obj.GetUID() {
		return nil
	}
	return fmt.Errorf("%T %q is in the store, and no event has reported it: %w", obj, store.NameOf(obj), store.ErrConflict)
}
