package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/volumekit/volumekit/store"
)

// database is a store of objects that survives the agent. It is a store in memory that appends every write to a file
// and syncs the file before the write returns. It reads the file at the start, and cuts off an incomplete last line of
// a crash. The file only grows.
//
// An orchestrator implements store.Store on its own database. The library expects no more than this of it: a write that
// has returned survives a crash, and a failed write returns an error.
//
// A write that cannot be appended has taken effect in memory. So it is the last one: the agent ends, and starts again
// from the content of the file.
type database struct {
	// The interface, not the struct: other writes of a store in memory, such as a transaction, would not be in the
	// file.
	store.Store

	mu     sync.Mutex // keeps the lines in the order of the writes
	file   *os.File
	err    error         // the failed write
	failed chan struct{} // closed at a failed write
}

var _ store.Store = (*database)(nil)

// line is one line of the file: a written object, or the key of a deleted one.
type line struct {
	Object  json.RawMessage `json:"object,omitempty"`
	Deleted *store.Key      `json:"deleted,omitempty"`
}

// openDatabase opens the file, makes a missing one, and reads it.
func openDatabase(ctx context.Context, name string) (*database, error) {
	if err := os.MkdirAll(filepath.Dir(name), 0o750); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	d := &database{Store: store.NewMemory(store.MemoryOptions{}), file: file, failed: make(chan struct{})}
	if err := errors.Join(d.load(ctx), syncDir(filepath.Dir(name))); err != nil {
		file.Close()
		return nil, fmt.Errorf("database %q: %w", name, err)
	}
	return d, nil
}

func (d *database) close() { d.file.Close() }

// run returns when ctx ends, or with the error of a failed write.
func (d *database) run(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-d.failed:
		return d.err
	}
}

// load reads the file into memory. An agent that was killed, or whose sync failed, may have left lines that are
// readable but not on the disk. So load writes all of it again and syncs it before the agent uses it.
func (d *database) load(ctx context.Context) error {
	content, err := os.ReadFile(d.file.Name())
	if err != nil {
		return err
	}
	whole := content[:bytes.LastIndexByte(content, '\n')+1]
	if len(whole) < len(content) {
		if err := d.file.Truncate(int64(len(whole))); err != nil {
			return err
		}
	}
	objects, err := replay(whole)
	if err != nil {
		return err
	}
	if _, err := d.file.WriteAt(whole, 0); err != nil {
		return err
	}
	if _, err := d.file.Seek(0, io.SeekEnd); err != nil {
		return err
	}
	if err := d.file.Sync(); err != nil {
		return err
	}
	for _, object := range objects {
		if err := d.restore(ctx, object); err != nil {
			return err
		}
	}
	return nil
}

// replay returns the objects that remain after the last line.
func replay(lines []byte) (map[store.Key]store.Object, error) {
	objects := make(map[store.Key]store.Object)
	for text := range bytes.Lines(lines) {
		var l line
		if err := json.Unmarshal(text, &l); err != nil {
			return nil, fmt.Errorf("damaged, restore it from a backup: %w", err)
		}
		if l.Deleted != nil {
			delete(objects, *l.Deleted)
			continue
		}
		decoded, err := store.Decode(bytes.NewReader(l.Object))
		if err != nil {
			return nil, err
		}
		for _, object := range decoded {
			key, err := store.KeyOf(object)
			if err != nil {
				return nil, err
			}
			objects[key] = object.(store.Object) //nolint:forcetypeassert // Every kind of a store is one.
		}
	}
	return objects, nil
}

// restore adds one object to memory, and marks it as deleted if it was.
func (d *database) restore(ctx context.Context, object store.Object) error {
	dying := object.GetDeletionTimestamp() != nil
	object.SetResourceVersion("")
	created, err := d.Store.Create(ctx, object)
	if err != nil || !dying {
		return err
	}
	key, err := store.KeyOf(created)
	if err != nil {
		return err
	}
	return d.Store.Delete(ctx, key, store.Preconditions{})
}

// Create implements store.Store.
func (d *database) Create(ctx context.Context, object runtime.Object) (runtime.Object, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err != nil {
		return nil, d.err
	}
	created, err := d.Store.Create(ctx, object)
	if err != nil {
		return nil, err
	}
	return created, d.appendObject(created)
}

// Update implements store.Store.
func (d *database) Update(ctx context.Context, object runtime.Object) (runtime.Object, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err != nil {
		return nil, d.err
	}
	updated, err := d.Store.Update(ctx, object)
	if err != nil {
		return nil, err
	}
	// The update that removes the last finalizer of an object that is being deleted deletes it.
	key, err := store.KeyOf(updated)
	if err != nil {
		return nil, err
	}
	return updated, d.appendCurrent(ctx, key)
}

// Delete implements store.Store.
func (d *database) Delete(ctx context.Context, key store.Key, preconditions store.Preconditions) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err != nil {
		return d.err
	}
	if err := d.Store.Delete(ctx, key, preconditions); err != nil {
		return err
	}
	return d.appendCurrent(ctx, key)
}

// appendCurrent appends the present object of a key, or its deletion.
func (d *database) appendCurrent(ctx context.Context, key store.Key) error {
	object, err := d.Store.Get(context.WithoutCancel(ctx), key)
	if errors.Is(err, store.ErrNotFound) {
		return d.append(line{Deleted: &key})
	}
	if err != nil {
		return err
	}
	return d.appendObject(object)
}

func (d *database) appendObject(object runtime.Object) error {
	content, err := json.Marshal(object)
	if err != nil {
		return err
	}
	return d.append(line{Object: content})
}

// append appends a line. The caller holds d.mu.
func (d *database) append(l line) error {
	text, err := json.Marshal(l)
	if err == nil {
		_, err = d.file.Write(append(text, '\n'))
	}
	if err == nil {
		err = d.file.Sync()
	}
	if err != nil {
		d.err = fmt.Errorf("writing %q: %w", d.file.Name(), err)
		close(d.failed)
		return d.err
	}
	return nil
}

// syncDir syncs a directory: its entries survive a power cut.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
