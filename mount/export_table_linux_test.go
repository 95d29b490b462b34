package mount

import (
	"context"
	"testing"
	"time"
)

// HasMountEvents reports whether the kernel tells which mounts come and go.
func HasMountEvents() bool {
	fd, err := openMountEvents()
	if err == nil {
		closeFD(fd)
	}
	return err == nil
}

// HasFacts reports whether the kernel gives all facts of a mount by its unique id.
func (m *Mounter) HasFacts() bool {
	ids, err := listMounts(0)
	if err != nil {
		return false
	}
	_, err = m.reader.facts(ids[len(ids)-1])
	return err == nil
}

// Exists reports whether the mount with the identity is there.
func (m *Mounter) Exists(ctx context.Context, id Identity) (bool, error) {
	return m.reader.exists(ctx, id)
}

// AwaitEvents lets Watch wait as long as it takes for the events that explain why the table has changed.
func (m *Mounter) AwaitEvents() { m.reader.eventLag = time.Hour }

// WatchInSteps opens a watch, and returns its steps: to wait until there is something to tell, to explain it, and to look
// whether anything is left that is not explained.
func (m *Mounter) WatchInSteps(t testing.TB) (wait, explain func() TableChange, left func() bool) {
	t.Helper()
	w := &watcher{reader: m.reader, end: -1, table: -1, events: -1}
	if err := w.open(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.close)
	var change TableChange
	wait = func() TableChange {
		t.Helper()
		var err error
		if change, _, err = w.wait(); err != nil {
			t.Fatal(err)
		}
		return change
	}
	explain = func() TableChange {
		t.Helper()
		if err := w.explain(&change); err != nil {
			t.Fatal(err)
		}
		return change
	}
	return wait, explain, w.tableChanged
}

// Bounds of the kept table.
const (
	MaxTableAge    = maxTableAge
	MaxRefsQueried = maxRefsQueried
	RefsPart       = refsPart
)

// MinBothEnds is from how many mounts on a table is read from both sides.
const MinBothEnds = minBothEnds

// ReadWholeTable reads the table as a text, from its beginning to its end.
func (m *Mounter) ReadWholeTable(ctx context.Context) ([]MountPoint, error) {
	return m.reader.readTable(ctx)
}

// ReadsBothEnds reports whether a table is read from both sides now, as it should where nothing is mounted meanwhile.
func (m *Mounter) ReadsBothEnds(t testing.TB) bool {
	t.Helper()
	fd, err := openTable()
	if err != nil {
		t.Fatal(err)
	}
	defer closeFD(fd)
	ids := m.reader.uniqueIDs(0)
	if !canReadBothEnds(ids) {
		return false
	}
	_, ok, err := m.reader.readBothEnds(fd, ids)
	if err != nil {
		t.Fatal(err)
	}
	return ok
}
