package record

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
)

// Table keeps the records of one kind, as rows in memory and as JSON in a directory. Several tables can share a directory.
// Its methods may be called from several goroutines at once, but only one may write a key at a time. Rows are shared: a caller
// does not change what a row points to, and puts a changed copy instead.
type Table[T any] struct {
	dir  *Dir
	kind string

	mu   sync.Mutex
	rows map[string]T
}

// NewTable returns an empty table of the records in dir whose keys begin with kind; an empty kind stands for all. [LoadTables]
// fills it.
func NewTable[T any](dir *Dir, kind string) *Table[T] {
	return &Table[T]{dir: dir, kind: kind, rows: map[string]T{}}
}

// loader is a table of any type.
type loader interface{ load(r Record) (bool, error) }

// LoadTables reads the records of dir into its tables, before any other use of them. It logs what [Dir.Load] has found damaged:
// those records are in no table. A record of another kind is an error that matches [ErrNewer]; one that is not the JSON of its
// table is an error too.
func LoadTables(dir *Dir, logger *slog.Logger, tables ...loader) error {
	records, damaged, err := dir.Load()
	if err != nil {
		return err
	}
	for _, d := range damaged {
		logger.Error("records are damaged: what they were of is left as it is", "path", d.Path, "error", d.Err)
	}
	for _, r := range records {
		if err := loadOne(r, tables); err != nil {
			return fmt.Errorf("record %q in %q: %w", r.Key, dir.Path(), err)
		}
	}
	return nil
}

func loadOne(r Record, tables []loader) error {
	for _, table := range tables {
		if loaded, err := table.load(r); loaded || err != nil {
			return err
		}
	}
	return fmt.Errorf("it is of no kind that this version knows: %w", ErrNewer)
}

// load adds a record, if it is of this kind.
func (t *Table[T]) load(r Record) (bool, error) {
	key, ok := strings.CutPrefix(r.Key, t.kind)
	if !ok {
		return false, nil
	}
	var row T
	if err := json.Unmarshal(r.Payload, &row); err != nil {
		return false, err
	}
	t.rows[key] = row
	return true, nil
}

// Get returns the row of a key, and false if there is none.
func (t *Table[T]) Get(key string) (T, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	row, ok := t.rows[key]
	return row, ok
}

// All returns the rows in the order of their keys.
func (t *Table[T]) All() []T { return t.Where(func(T) bool { return true }) }

// Where returns the rows for which is returns true, in the order of their keys. is must not call the table.
func (t *Table[T]) Where(is func(T) bool) []T {
	t.mu.Lock()
	defer t.mu.Unlock()
	var found []T
	for _, key := range t.keys(is) {
		found = append(found, t.rows[key])
	}
	return found
}

// keys returns the sorted keys of the rows for which is returns true. The caller holds the lock.
func (t *Table[T]) keys(is func(T) bool) []string {
	keys := slices.Collect(maps.Keys(t.rows))
	keys = slices.DeleteFunc(keys, func(key string) bool { return !is(t.rows[key]) })
	slices.Sort(keys)
	return keys
}

// Put writes a row. It returns when [Dir.Put] has returned; after an error the table has the row of before, and the directory
// may have either.
func (t *Table[T]) Put(key string, row T) error {
	payload, err := json.Marshal(row)
	if err != nil {
		return err
	}
	if err := t.dir.Put(t.kind+key, payload); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rows[key] = row
	return nil
}

// Remove removes the row of a key, which may be missing. After an error the table still has the row.
func (t *Table[T]) Remove(key string) error {
	if err := t.dir.Remove(t.kind + key); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.rows, key)
	return nil
}

// RemoveWhere removes the rows for which is returns true. is must not call the table.
func (t *Table[T]) RemoveWhere(is func(T) bool) error {
	t.mu.Lock()
	keys := t.keys(is)
	t.mu.Unlock()
	var errs []error
	for _, key := range keys {
		errs = append(errs, t.Remove(key))
	}
	return errors.Join(errs...)
}
