package record

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/volumekit/volumekit/internal/journal"
)

const (
	// logName is the name of the log, newLog that of one that is being written.
	logName = "records.log"
	newLog  = tempPrefix + logName
	// roomStep is how much room is reserved at a time.
	roomStep = 64 << 10
	// leastLog is how long a log becomes, at least, before it is written anew.
	leastLog = 4 << 20
)

// newerMark is a file, and its content, by which a program that looks for a file of each record is told that a newer one was here.
const (
	newerMark    = "log" + suffix
	newerContent = format + "2 is in " + logName + "\n"
)

// batch is what goes to the disk together.
type batch struct {
	writes []frame
	errs   []error
	done   chan struct{} // closed when errs are set
}

// Put writes the record of key, in place of an earlier one. After an error the earlier record or none is there, or the new
// one when only the sync failed.
func (d *Dir) Put(key string, payload []byte) error {
	if size := len(key) + len(payload); size > maxSize {
		return fmt.Errorf("record of %q has %d bytes, more than %d", key, size, maxSize)
	}
	return d.write(frame{key: key, payload: payload})
}

// Remove removes the record of key. A missing one is no error. What lies in its place and was left there stays.
func (d *Dir) Remove(key string) error { return d.write(frame{key: key, removed: true}) }

// write writes a frame, together with those of all others who wait. Who comes to lead first writes for all.
func (d *Dir) write(f frame) error {
	b, i := d.join(f)
	select {
	case <-b.done:
	case d.lead <- struct{}{}:
		d.writeNext(b)
		<-d.lead
	}
	if err := b.errs[i]; err != nil {
		return fmt.Errorf("record of %q in %q: %w", f.key, d.files.path, WithAdvice(err))
	}
	return nil
}

// join adds a frame to what is written next.
func (d *Dir) join(f frame) (*batch, int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.waiting == nil {
		d.waiting = &batch{done: make(chan struct{})}
	}
	d.waiting.writes = append(d.waiting.writes, f)
	return d.waiting, len(d.waiting.writes) - 1
}

// writeNext writes what waits, unless another has done so meanwhile.
func (d *Dir) writeNext(b *batch) {
	d.mu.Lock()
	if d.waiting != b {
		d.mu.Unlock()
		return
	}
	d.waiting = nil
	d.mu.Unlock()
	defer close(b.done)
	b.errs = make([]error, len(b.writes))
	writes := d.prepare(b)
	err := d.append(writes)
	if journal.IsFull(err) && len(writes) > 1 { // Removals have room left.
		for i := range b.writes {
			if b.errs[i] == nil && d.isNeeded(b.writes[i]) {
				b.errs[i] = d.append(b.writes[i : i+1])
			}
		}
		return
	}
	for i := range b.errs {
		b.errs[i] = cmp.Or(b.errs[i], err)
	}
}

// prepare returns what there is to write, once the log can be written to and what is to be left is out of the way.
func (d *Dir) prepare(b *batch) []frame {
	if err := d.ready(); err != nil {
		for i := range b.errs {
			b.errs[i] = err
		}
		return nil
	}
	var writes []frame
	for i, f := range b.writes {
		if !f.removed {
			b.errs[i] = d.makeWay(f.key)
		}
		if b.errs[i] == nil && d.isNeeded(f) {
			writes = append(writes, f)
		}
	}
	return writes
}

// isNeeded reports whether a frame is to be written: not the removal of what is not there, or of what is to be left.
func (d *Dir) isNeeded(f frame) bool {
	_, there := d.index[f.key]
	return !f.removed || there && !d.isLeft(f.key)
}

// append makes frames durable, then known. A disk that is full may have room for a log without what is past.
func (d *Dir) append(writes []frame) error {
	if len(writes) == 0 {
		return nil
	}
	err := d.appendNow(writes)
	if journal.IsFull(err) && d.log.Size() > d.base && d.log.Cut() == nil && d.compact() == nil {
		err = d.appendNow(writes)
	}
	return err
}

func (d *Dir) appendNow(writes []frame) error {
	if err := d.isThere(); err != nil {
		return err
	}
	start := d.log.Size()
	text := d.text[:0]
	// What counts has room to be written anew once more, and to be removed.
	spans, keep, grows := make([]span, len(writes)), d.removals+d.live, false
	for i, f := range writes {
		f.start = start
		from := start + int64(len(text))
		text = f.appendTo(text)
		spans[i] = span{from, start + int64(len(text))}
		if !f.removed {
			grows, keep = true, keep+removalOf(f.key)+spans[i].size()
		}
	}
	if cap(text) <= roomStep {
		d.text = text
	}
	if grows {
		if err := d.log.MakeRoom(len(text), keep); err != nil {
			return err
		}
	}
	if err := d.log.Append(text); err != nil {
		return err
	}
	for i, f := range writes {
		d.enter(f, spans[i])
	}
	if d.log.Size() >= d.due && d.compact() != nil {
		d.due = d.log.Size() + max(d.least, d.log.Size()/4) // It is tried again later.
	}
	return nil
}

// isThere reports an error when the log was removed: what is written to it would be lost.
func (d *Dir) isThere() error {
	if linked, ok := d.file.(interface{ IsLinked() (bool, error) }); ok {
		there, err := linked.IsLinked()
		if err == nil && !there {
			err = ErrRemoved
		}
		return err
	}
	return nil
}

// enter notes where a record is.
func (d *Dir) enter(f frame, at span) {
	if old, there := d.index[f.key]; there {
		d.removals, d.live = d.removals-removalOf(f.key), d.live-old.size()
		delete(d.index, f.key)
	}
	if !f.removed {
		d.index[f.key] = at
		d.removals, d.live = d.removals+removalOf(f.key), d.live+at.size()
	}
}

// removalOf is how much room the removal of a record may need.
func removalOf(key string) int64 {
	var room [256]byte
	return int64(len(strconv.AppendQuoteToASCII(room[:0], key))) + removalSize
}

// ready sees to it that the log can be written to: what was read is in it, and its name is durable.
func (d *Dir) ready() error {
	if d.closed {
		return fs.ErrClosed
	}
	if d.unread {
		_, damaged, err := d.load()
		if err != nil {
			return err
		}
		for _, bad := range damaged {
			if filepath.Dir(bad.Path) != d.files.path { // What is where it was is found again.
				d.early = append(d.early, bad)
			}
		}
	}
	if d.unnamed {
		return d.compact()
	}
	return d.settle()
}

// compact puts a log in the place of the present one that holds what counts and nothing else.
func (d *Dir) compact() error {
	content, err := d.files.disk.Read(logName)
	if err != nil {
		return err
	}
	type at struct {
		key string
		span
	}
	order := make([]at, 0, len(d.index))
	for key, s := range d.index {
		order = append(order, at{key, s})
	}
	slices.SortFunc(order, func(a, b at) int { return cmp.Compare(a.from, b.from) })
	records := make([]Record, 0, len(order))
	for _, o := range order {
		if o.to > int64(len(content)) {
			return fmt.Errorf("record of %q: %w", o.key, journal.ErrChanged)
		}
		f, _, err := parseFrame(content[o.from:o.to])
		if err != nil || f.key != o.key {
			return errors.Join(fmt.Errorf("record of %q: %w", o.key, journal.ErrChanged), err)
		}
		records = append(records, Record{Key: f.key, Payload: f.payload})
	}
	return d.writeAnew(records)
}

// writeAnew makes a log of records durable under another name, and puts it in the place of the present one.
func (d *Dir) writeAnew(records []Record) error {
	if err := d.writeMark(); err != nil {
		return err
	}
	var body []byte
	spans := make([]span, len(records))
	for i, r := range records {
		from := int64(len(body))
		body = frame{key: r.Key, payload: r.Payload}.appendTo(body)
		spans[i] = span{from, int64(len(body))}
	}
	head := headLine(len(body))
	index, removals := make(map[string]span, len(records)), int64(0)
	for i, r := range records {
		index[r.Key] = span{spans[i].from + int64(len(head)), spans[i].to + int64(len(head))}
		removals += removalOf(r.Key)
	}
	file, log, err := d.makeLog(append(head, body...), removals)
	if err != nil {
		return err
	}
	if err := d.files.disk.Rename(newLog, logName); err != nil {
		return errors.Join(err, log.Close(), d.files.disk.Unlink(newLog))
	}
	_ = d.closeLog() // Nothing is read from it any more.
	d.log, d.file, d.index, d.removals, d.live = log, file, index, removals, int64(len(body))
	d.base, d.due = log.Size(), max(d.least, 2*log.Size())
	d.unnamed = true
	if err := d.files.sync(); err != nil {
		return err
	}
	d.unnamed = false
	return nil
}

// makeLog makes a log under another name durable.
func (d *Dir) makeLog(content []byte, keep int64) (journal.File, *journal.Journal, error) {
	f, err := d.files.disk.Create(newLog)
	if err != nil {
		return nil, nil, err
	}
	file := d.files.asSynced(f)
	log := journal.New(file, d.files.logOptions())
	if err = log.MakeRoom(len(content), keep); err == nil {
		err = log.Append(content)
	}
	if err != nil {
		return nil, nil, errors.Join(err, log.Close(), d.files.disk.Unlink(newLog))
	}
	return f, log, nil
}

// writeMark makes newerMark where it is missing, before there is a log.
func (d *Dir) writeMark() error {
	if d.log != nil || d.files.exists(newerMark) {
		return nil
	}
	if err := d.files.makeFile(newerMark, []byte(newerContent)); err != nil {
		return errors.Join(err, d.files.discard(newerMark))
	}
	return nil
}
