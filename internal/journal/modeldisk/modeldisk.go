// Package modeldisk has a directory in memory, for tests. It records each system call, can fail calls, can become full, and computes
// what a power cut may leave.
package modeldisk

import (
	"bytes"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/volumekit/volumekit/internal/journal"
)

var _ journal.Files = (*Disk)(nil)

// Disk is a directory in memory that records each system call.
type Disk struct {
	// Steps are the calls that have changed something, in order.
	Steps []Step
	// Files are the existing files, by name.
	Files map[string]*File
	// Fails is called before each call that changes something. If it returns an error, the call fails with it; a write has then
	// written half of its data. Nil fails nothing.
	Fails func(Step) error
	// Capacity is the number of bytes that the files may occupy; 0 means no limit.
	Capacity int64

	mu sync.Mutex // guards everything; it is not held while Fails runs, which may wait
}

// File is a file of a [Disk].
type File struct {
	// Content is the content that a read returns.
	Content []byte

	disk *Disk
	// reserved is the offset up to which the file occupies space, even without content there.
	reserved int64
}

// Step is one system call.
type Step struct {
	// Call is the name of the call. From and To are names of files.
	Call, From, To string
	// File is the file of the call; nil for none.
	File *File
	// At is the offset at which Data is written, or the new size or reserved size of the file.
	At int64
	// Data is the written data.
	Data []byte
}

// New returns a disk with files of these names and contents.
func New(contents map[string][]byte) *Disk {
	d := &Disk{Files: map[string]*File{}}
	for name, content := range contents {
		d.Files[name] = &File{disk: d, Content: bytes.Clone(content)}
	}
	return d
}

func (d *Disk) note(s Step) error {
	if d.Fails != nil {
		d.mu.Unlock()
		err := d.Fails(s)
		d.mu.Lock()
		if err != nil {
			return err
		}
	}
	s.Data = bytes.Clone(s.Data)
	d.Steps = append(d.Steps, s)
	return nil
}

// Create implements [journal.Files].
func (d *Disk) Create(name string) (journal.File, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f := &File{disk: d}
	if old, ok := d.Files[name]; ok {
		f = old
		return f, f.truncate(0)
	}
	err := d.note(Step{Call: "create", To: name, File: f})
	if err == nil {
		d.Files[name] = f
	}
	return f, err
}

// Reopen implements [journal.Files].
func (d *Disk) Reopen(name string) (journal.File, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f, ok := d.Files[name]
	if !ok {
		return nil, fs.ErrNotExist
	}
	return f, nil
}

// Read implements [journal.Files].
func (d *Disk) Read(name string) ([]byte, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f, ok := d.Files[name]
	if !ok {
		return nil, fs.ErrNotExist
	}
	return bytes.Clone(f.Content), nil
}

// Rename implements [journal.Files].
func (d *Disk) Rename(from, to string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	err := d.note(Step{Call: "rename", From: from, To: to, File: d.Files[from]})
	if err == nil {
		d.Files[to] = d.Files[from]
		delete(d.Files, from)
	}
	return err
}

// Link implements [journal.Files].
func (d *Disk) Link(from, to string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.Files[from] == nil {
		return fs.ErrNotExist
	}
	d.Files[to] = d.Files[from]
	return d.note(Step{Call: "link", To: to, File: d.Files[from]})
}

// Unlink implements [journal.Files].
func (d *Disk) Unlink(name string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	err := d.note(Step{Call: "unlink", From: name})
	if err == nil {
		delete(d.Files, name)
	}
	return err
}

// Sync implements [journal.Files].
func (d *Disk) Sync() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.note(Step{Call: "sync"})
}

// roomFor returns ENOSPC if the disk has no space for a file of that size. A file with two names counts once.
func (d *Disk) roomFor(f *File, size int64) error {
	if d.Capacity == 0 || size <= f.takes() {
		return nil
	}
	files := map[*File]bool{f: true}
	for _, other := range d.Files {
		files[other] = true
	}
	used := size - f.takes()
	for other := range files {
		used += other.takes()
	}
	if used > d.Capacity {
		return syscall.ENOSPC
	}
	return nil
}

func (f *File) takes() int64 { return max(f.reserved, int64(len(f.Content))) }

// Names implements [journal.Files].
func (d *Disk) Names() ([]string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Collect(maps.Keys(d.Files)), nil
}

// WriteAt implements [journal.File].
func (f *File) WriteAt(data []byte, at int64) (int, error) {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	if err := f.disk.roomFor(f, at+int64(len(data))); err != nil {
		return 0, err
	}
	if err := f.disk.note(Step{Call: "write", File: f, At: at, Data: data}); err != nil {
		half := len(data) / 2 // A disk that becomes full writes a part, too.
		f.Content = writeAt(f.Content, data[:half], at)
		f.disk.Steps = append(f.disk.Steps, Step{Call: "write", File: f, At: at, Data: bytes.Clone(data[:half])})
		return half, err
	}
	f.Content = writeAt(f.Content, data, at)
	return len(data), nil
}

// Truncate implements [journal.File].
func (f *File) Truncate(size int64) error {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	return f.truncate(size)
}

// Reserve implements [journal.File]. A power cut does not change the reserved size.
func (f *File) Reserve(_, to int64) error {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	err := f.disk.roomFor(f, to)
	if err == nil {
		err = f.disk.note(Step{Call: "reserve", File: f, At: to})
	}
	if err == nil {
		f.reserved = max(f.reserved, to)
	}
	return err
}

func (f *File) truncate(size int64) error {
	err := f.disk.note(Step{Call: "truncate", File: f, At: size})
	if err == nil {
		f.Content = f.Content[:min(size, int64(len(f.Content)))]
		f.reserved = min(size, f.reserved)
	}
	return err
}

// Sync implements [journal.File]. A failed sync behaves as the kernel's: reads return the data, later syncs do not write it again, and
// it may or may not be on the disk.
func (f *File) Sync() error {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	err := f.disk.note(Step{Call: "sync file", File: f})
	if err != nil {
		f.disk.Steps = append(f.disk.Steps, Step{Call: "failed sync", File: f})
	}
	return err
}

// Close implements [journal.File].
func (f *File) Close() error { return nil }

func writeAt(content, data []byte, at int64) []byte {
	content = append(bytes.Clone(content), make([]byte, max(0, int(at)+len(data)-len(content)))...)
	copy(content[at:], data)
	return content
}

// CutPower yields the possible contents of the directory after steps and a power cut. Each change of a name that was not synced may
// be there or not. Of the data of a file that was not synced, there may be nothing, all but half of the last write, zeros in its
// place, or all. Data that a failed sync did not write may be there or not; later syncs do not change that.
func CutPower(steps []Step) func(yield func(map[string][]byte) bool) {
	return func(yield func(map[string][]byte) bool) {
		for contents := range cutPowerWhere(steps, "sync file") {
			if !yield(contents) {
				return
			}
		}
		if !slices.ContainsFunc(steps, func(s Step) bool { return s.Call == "failed sync" }) {
			return
		}
		for contents := range cutPowerWhere(steps, "lost") {
			if !yield(contents) {
				return
			}
		}
	}
}

// cutPowerWhere is CutPower for one effect of failed syncs: "sync file" if they have synced in spite of the error, "lost" if not.
func cutPowerWhere(steps []Step, failed string) func(yield func(map[string][]byte) bool) {
	left := leftAfter(steps, failed)
	return func(yield func(map[string][]byte) bool) {
		for subset := range 1 << len(left.pending) {
			names := left.names(subset)
			for found := range 4 {
				if !yield(left.contents(names, found)) {
					return
				}
			}
		}
	}
}

// remains holds what is durable after steps, and what may be.
type remains struct {
	durable map[string]*File
	pending []Step // changes of names since the directory was synced
	synced  map[*File][]byte
	written map[*File][]Step // writes since the file was synced
}

func leftAfter(steps []Step, failed string) remains {
	r := remains{durable: map[string]*File{}, synced: map[*File][]byte{}, written: map[*File][]Step{}}
	for _, s := range steps {
		call := s.Call
		if call == "failed sync" {
			call = failed
		}
		switch call {
		case "reserve":
		case "lost":
			r.written[s.File] = nil
		case "sync":
			for _, p := range r.pending {
				p.name(r.durable)
			}
			r.pending = nil
		case "sync file":
			r.synced[s.File] = apply(r.synced[s.File], r.written[s.File], 3)
			r.written[s.File] = nil
		case "write", "truncate":
			r.written[s.File] = append(r.written[s.File], s)
		default:
			r.pending = append(r.pending, s)
		}
	}
	return r
}

// names returns the names if a subset of the pending steps is durable. Bit i of subset stands for step i.
func (r remains) names(subset int) map[string]*File {
	names := maps.Clone(r.durable)
	for i, s := range r.pending {
		if subset&(1<<i) != 0 {
			s.name(names)
		}
	}
	return names
}

// contents returns the contents of the files of names. found selects what is left of unsynced data, see apply.
func (r remains) contents(names map[string]*File, found int) map[string][]byte {
	contents := map[string][]byte{}
	for name, f := range names {
		contents[name] = apply(r.synced[f], r.written[f], found)
	}
	return contents
}

// name makes the change of a step to names.
func (s Step) name(names map[string]*File) {
	delete(names, s.From)
	if s.To != "" {
		names[s.To] = s.File
	}
}

// apply makes steps to content: none if found is 0, all but half of the last write if 1, zeros beyond the old end if 2, all if 3.
func apply(content []byte, steps []Step, found int) []byte {
	for i, s := range steps {
		switch {
		case found == 0:
		case s.Call == "truncate":
			content = content[:min(s.At, int64(len(content)))]
		case found == 1 && i == len(steps)-1:
			content = writeAt(content, s.Data[:len(s.Data)/2], s.At)
		case found == 2: // zeros beyond the old end only
			content = writeAt(content, make([]byte, max(0, s.At+int64(len(s.Data))-int64(len(content)))), max(s.At, int64(len(content))))
		default:
			content = writeAt(content, s.Data, s.At)
		}
	}
	return content
}

// Named returns the file of that name; nil if there is none.
func (d *Disk) Named(name string) *File {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.Files[name]
}

// Made returns the number of calls that have changed something.
func (d *Disk) Made() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.Steps)
}

// Replay makes the steps of another disk on this one.
func (d *Disk) Replay(steps []Step) {
	here := map[*File]*File{}
	for _, s := range steps {
		switch s.Call {
		case "create":
			_, _ = d.Create(s.To)
			here[s.File] = d.Files[s.To]
		case "rename":
			_ = d.Rename(s.From, s.To)
		case "unlink":
			_ = d.Unlink(s.From)
		case "sync":
			_ = d.Sync()
		default:
			if f := here[s.File]; f != nil {
				f.do(s)
			}
		}
	}
}

func (f *File) do(s Step) {
	switch s.Call {
	case "write":
		_, _ = f.WriteAt(s.Data, s.At)
	case "truncate":
		_ = f.Truncate(s.At)
	case "sync file":
		_ = f.Sync()
	}
}

// Contents returns the content of each file, by name.
func (d *Disk) Contents() map[string][]byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	contents := map[string][]byte{}
	for name, f := range d.Files {
		contents[name] = f.Content
	}
	return contents
}

// Identity returns a string that is different for different arguments.
func Identity(allowed []string, contents map[string][]byte) string {
	text := slices.Clone(allowed)
	for _, name := range slices.Sorted(maps.Keys(contents)) {
		text = append(text, name, string(contents[name]))
	}
	return strings.Join(text, "\x00")
}
