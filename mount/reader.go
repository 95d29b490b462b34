package mount

import (
	"context"
	"errors"
	"sync"
	"time"
)

// reader tells what is mounted where. It changes nothing, and it waits for no filesystem but where a method says so.
type reader struct {
	// current is what is kept of the mount table.
	current *current
	looks   sync.Pool
	without Feature
	// eventLag is how long an event of fanotify may come after the mount table has told that something changed, as the
	// kernel tells of a mount in that order.
	eventLag time.Duration
}

const maxEventLag = 500 * time.Millisecond

// errWouldWait says that a question cannot be answered without asking a filesystem, which may not answer.
var errWouldWait = errors.New("a filesystem would have to be asked")

func newReader(without Feature) *reader {
	return &reader{current: newCurrent(), without: without, eventLag: maxEventLag}
}

// isInTable reports whether the mount table, as it is now, has a mount at name that can be seen.
func (r *reader) isInTable(ctx context.Context, name string) (bool, error) {
	table, err := r.readTable(ctx)
	if err != nil {
		return false, err
	}
	_, is := lookup(table, name)
	return is, nil
}
