package inspect

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"sync"
	"time"
)

// The bounds of streams of events.
const (
	// maxStreams is the number of concurrent streams of a handler.
	maxStreams = 64
	// eventPause is the pause of a stream after an event. The next event reports changes of that time.
	eventPause = 50 * time.Millisecond
	// keepAliveInterval is the interval at which a stream without changes writes a line, to detect that its client is gone.
	keepAliveInterval = 15 * time.Second
	// writeTimeout is the time in which a client must read an event.
	writeTimeout = 10 * time.Second
	// reconnectMilliseconds is the time after which a browser opens an ended stream again.
	reconnectMilliseconds = 2000
)

// streams are the open streams of events of one handler.
type streams struct{ slots chan struct{} }

func newStreams() streams { return streams{slots: make(chan struct{}, maxStreams)} }

// serve sends an event to a browser for each value of changes, and at least one at the beginning. Changes that come
// faster than the browser reads are one event: a slow browser costs no memory, and delays nothing. It ends with the
// request or with changes.
func (s streams) serve(w http.ResponseWriter, r *http.Request, changes func(context.Context) iter.Seq[struct{}]) {
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	default:
		w.Header().Set("Retry-After", "10")
		http.Error(w, fmt.Sprintf("inspect: %d browsers are told of changes already", maxStreams), http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	ctx, cancel := context.WithCancel(r.Context())
	changed := make(chan struct{}, 1)
	var watching sync.WaitGroup
	defer watching.Wait()
	defer cancel()
	watching.Go(func() {
		defer close(changed)
		for range changes(ctx) {
			select {
			case changed <- struct{}{}:
			default: // The waiting event reports this change, too.
			}
		}
	})
	if write(w, fmt.Sprintf("retry: %d\n\n", reconnectMilliseconds)) != nil {
		return
	}
	for {
		line, goesOn := nextLine(ctx, changed)
		if write(w, line) != nil || !goesOn {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(eventPause):
		}
	}
}

// nextLine waits for the next line of a stream: an event after a change, or else a comment. It returns false at the end
// of the stream.
func nextLine(ctx context.Context, changed <-chan struct{}) (line string, goesOn bool) {
	const event, comment = "event: change\ndata: {}\n\n", ":\n\n"
	select {
	case _, goesOn = <-changed:
		return event, goesOn
	case <-time.After(keepAliveInterval):
		return comment, true
	case <-ctx.Done():
		return comment, false
	}
}

// write writes to a client within writeTimeout.
func write(w http.ResponseWriter, line string) error {
	client := http.NewResponseController(w)
	if err := client.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	if _, err := w.Write([]byte(line)); err != nil {
		return err
	}
	return client.Flush()
}
