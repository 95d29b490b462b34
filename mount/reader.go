package mount

import (
	"context"
	"errors"
	"sync"
	"time"
)

// reader finds out what is mounted where. It changes nothing. It waits for a filesystem only where a method says so.
type reader struct {
	// cache is what is kept of the mount table.
	cache     *tableCache
	scratches sync.Pool
	without   Feature
	// eventLag is how long after a poll of the mount table the fanotify event of the same change may come.
	eventLag time.Duration
}

const maxEventLag = 500 * time.Millisecond

// errWouldWait: the answer needs a query of a filesystem, which may hang.
var errWouldWait = errors.New("a filesystem would have to be queried")

func newReader(without Feature) *reader {
	return &reader{cache: newTableCache(), without: without, eventLag: maxEventLag}
}

// isInTable reads the mount table and reports whether it has a visible mount at name.
func (r *reader) isInTable(ctx context.Context, name string) (bool, error) {
	table, err := r.readTable(ctx)
	if err != nil {
		return false, err
	}
	_, is := lookup(table, name)
	return is, nil
}
