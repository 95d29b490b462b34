package record

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
)

const quarantineDir = "quarantine"

// Load reads every record, several at once. What a crash left half written is removed. What is damaged is moved aside and
// returned; what is newer, or cannot be read back, is returned and stays. An error says that not everything is known: a
// record that cannot be read at this moment is not damaged.
func (d *Dir) Load() ([]Record, []Damaged, error) {
	names, err := d.list()
	if err != nil {
		return nil, nil, fmt.Errorf("records in %q: %w", d.path, err)
	}
	records, errs := make([]Record, len(names)), make([]error, len(names))
	inParallel(len(names), func(i int) { records[i], errs[i] = d.read(names[i]) })
	good := records[:0]
	var damaged []Damaged
	for i, name := range names {
		switch err := errs[i]; {
		case err == nil:
			good = append(good, records[i])
		case errors.Is(err, errDamaged), errors.Is(err, ErrNewer), isUnreadable(err):
			damaged = append(damaged, d.quarantine(name, err))
		default:
			return nil, nil, fmt.Errorf("record %q in %q: %w", name, d.path, err)
		}
	}
	return good, damaged, nil
}

// Quarantine takes the record of key out of use, for a caller that cannot make sense of its payload, and returns where it
// lies now. It is moved aside; one that is newer by the word of reason, which then matches [ErrNewer], stays.
func (d *Dir) Quarantine(key string, reason error) Damaged {
	return d.quarantine(fileName(key), reason)
}

// inParallel calls do with 0 to n-1, on every processor.
func inParallel(n int, do func(i int)) {
	var next atomic.Int64
	var wg sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), n) {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				do(i)
			}
		})
	}
	wg.Wait()
}

// list returns the names of the records, and removes what a crash left half written.
func (d *Dir) list() ([]string, error) {
	entries, err := fs.ReadDir(d.root.FS(), ".")
	if err != nil {
		return nil, err
	}
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		switch name := e.Name(); {
		case strings.HasPrefix(name, tempPrefix):
			_ = d.discard(name) // It is of no use and does no harm where it cannot be removed.
		case strings.HasSuffix(name, suffix):
			names = append(names, name)
		}
	}
	return names, nil
}

// read reads one file. It follows no link and reads no more than a record can have.
func (d *Dir) read(name string) (Record, error) {
	content, err := d.directory.read(name)
	if err != nil {
		return Record{}, err
	}
	key, payload, err := decode(content)
	if err != nil {
		return Record{}, err
	}
	if fileName(key) != name {
		return Record{}, fmt.Errorf("%w: it is the record of %q under another name", errDamaged, key)
	}
	return Record{Key: key, Payload: payload}, nil
}

// leave notes that a file is not to be overwritten.
func (d *Dir) leave(name string, reason error) Damaged {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.left[name] = struct{}{}
	return Damaged{Path: filepath.Join(d.path, name), Err: reason}
}

func (d *Dir) isLeft(name string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, left := d.left[name]
	return left
}

// makeWay moves aside what was left where a record is about to be written.
func (d *Dir) makeWay(name string) error {
	if !d.isLeft(name) {
		return nil
	}
	if _, err := d.moveAside(name); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.left, name)
	return nil
}

// quarantine moves a file aside. One that cannot be moved stays, and so does one that may be good.
func (d *Dir) quarantine(name string, reason error) Damaged {
	if errors.Is(reason, ErrNewer) || isUnreadable(reason) {
		return d.leave(name, reason)
	}
	at, err := d.moveAside(name)
	if err != nil {
		return d.leave(name, errors.Join(reason, err))
	}
	return Damaged{Path: at, Err: reason}
}

// moveAside moves a file to a name that is free, and returns its path there.
func (d *Dir) moveAside(name string) (string, error) {
	if err := d.root.Mkdir(quarantineDir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	target := filepath.Join(quarantineDir, name)
	for i := 1; d.exists(target); i++ {
		target = filepath.Join(quarantineDir, fmt.Sprintf("%s.%d", name, i))
	}
	if err := errors.Join(d.root.Rename(name, target), d.sync()); err != nil {
		return "", err
	}
	return filepath.Join(d.path, target), nil
}
