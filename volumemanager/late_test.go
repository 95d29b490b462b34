package volumemanager

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/internal/record"
	"github.com/volumekit/volumekit/volumemanager/internal/journal"
)

// brokenDir is a directory of records in which nothing can be removed for a while.
type brokenDir struct {
	journal.Dir
	fail, tried *atomic.Int32
}

func (d brokenDir) Remove(key string) error {
	d.tried.Add(1)
	if d.fail.Add(-1) >= 0 {
		return errors.New("not now")
	}
	return d.Dir.Remove(key)
}

// A record that could not be removed stands for nothing, and goes by itself, without another operation or a resync.
func TestARecordThatCouldNotBeRemovedGoesAfterABackoff(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, withRecords(t))
		m := w.prepare()
		var fail, tried atomic.Int32
		open := m.journal.Disk.OpenDir
		m.journal.Disk.OpenDir = func(path string, o record.Options) (journal.Dir, error) {
			dir, err := open(path, o)
			return brokenDir{dir, &fail, &tried}, err
		}
		w.run()
		m.PodsComplete()
		w.add(podOf("web", "-scratch"))
		fail.Store(3)
		w.remove(podOf("web", "-scratch"))
		require.NoError(t, m.WaitForNodeEmpty(t.Context()))
		require.Len(t, w.records(), 1)
		pass(10 * time.Second)
		assert.Empty(t, w.records())
		before := tried.Load()
		pass(24 * time.Hour)
		assert.Equal(t, before, tried.Load(), "nothing is tried that has succeeded")
	})
}
