package loop

import (
	"maps"
	"slices"
	"sync"
)

// identity is what a backing file is known by.
type identity struct{ dev, ino uint64 }

// rowState is what is known of a device.
type rowState uint8

const (
	rowFree     rowState = iota // it has no file
	rowAttached                 // it has the file of row.id
	rowSilent                   // it did not answer
)

// row is what is known of one device. It stays true for as long as the device has the sequence number seq: the kernel
// gives each disk a new one, from one counter for all disks of the machine, whenever the disk gets or loses its file.
type row struct {
	seq   uint64 // 0 where the kernel has no such numbers; the row is then never believed
	state rowState
	id    identity
}

// rows are what is known of all devices. Its methods may be called from several goroutines at once.
//
// Each attachment and each detachment counts the kernel's counter up by one. When a change of our own gets the number
// that follows the last one that we know of, then nobody else has changed any disk in between, and what we know is
// still all that there is. That is how a file is proven to have one device without a look at all devices.
//
// The kernel counts before it gives the device its file, and holds a lock of the device until that is done, for which
// whoever asks the device waits; so a change that was counted and is not done yet is found by a look, too. Between counting
// and writing the number down are two instructions of the kernel. A look at the device at that very instant takes the change
// for one that is still to come; the next look finds it.
type rows struct {
	mu     sync.Mutex
	all    map[int]row
	byFile map[identity][]int // the numbers in all whose state is rowAttached, by their file
	silent map[int]struct{}   // the numbers in all whose state is rowSilent
	upTo   uint64             // every change with a number up to this is in all
	known  bool               // all devices were looked at once
}

func newRows() *rows {
	return &rows{all: map[int]row{}, byFile: map[identity][]int{}, silent: map[int]struct{}{}}
}

// put keeps what was found, unless something newer is known.
func (r *rows) put(number int, found row) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.keep(number, found)
}

func (r *rows) keep(number int, found row) {
	if old, ok := r.all[number]; !ok || found.seq >= old.seq {
		r.drop(number)
		r.add(number, found)
	}
}

// add and drop are the only ones that change all, byFile and silent.
func (r *rows) add(number int, found row) {
	r.all[number] = found
	switch found.state {
	case rowFree:
	case rowAttached:
		r.byFile[found.id] = append(r.byFile[found.id], number)
	case rowSilent:
		r.silent[number] = struct{}{}
	}
}

func (r *rows) drop(number int) {
	old, ok := r.all[number]
	if !ok {
		return
	}
	delete(r.all, number)
	delete(r.silent, number)
	if old.state != rowAttached {
		return
	}
	left := slices.DeleteFunc(r.byFile[old.id], func(n int) bool { return n == number })
	if r.byFile[old.id] = left; len(left) == 0 {
		delete(r.byFile, old.id)
	}
}

// own keeps the result of a change of our own. It reports whether no foreign change was in between, so that the rows are complete up to
// this one.
func (r *rows) own(number int, found row) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.keep(number, found)
	if found.seq != 0 && r.upTo != 0 && found.seq == r.upTo+1 {
		r.upTo = found.seq
	}
	return r.covers(found.seq)
}

// complete reports whether every change up to the one with number seq is in the table.
func (r *rows) complete(seq uint64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.covers(seq)
}

// isAlone reports whether the table has every change up to the attachment of a device, and no other device with its file. A table
// that is complete proves nothing by itself: since this call looked for a device of the file, another call may have completed the
// table, with a device that another process gave to the file.
func (r *rows) isAlone(device Device, file identity) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	having := r.byFile[file]
	return r.covers(device.DiskSeq) && len(r.silent) == 0 && len(having) == 1 && having[0] == device.Number
}

func (r *rows) covers(seq uint64) bool { return seq != 0 && seq <= r.upTo }

// scanned says that all devices were looked at, after the change with number seq. before are the devices that were known
// when the look began; those that are not among the present ones, which are sorted, have been removed.
func (r *rows) scanned(seq uint64, before map[int]row, present []int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.upTo, r.known = max(r.upTo, seq), true
	for number, old := range before {
		if _, there := slices.BinarySearch(present, number); !there && r.all[number] == old {
			r.drop(number)
		}
	}
}

// isKnown reports whether all devices were looked at once.
func (r *rows) isKnown() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.known
}

// snapshot returns a copy of all rows.
func (r *rows) snapshot() map[int]row {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.all)
}

func (r *rows) get(number int) (row, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	found, ok := r.all[number]
	return found, ok
}

// with returns the devices that have the file of id, and those that do not say what they have.
func (r *rows) with(id identity) (having, silent []int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	having = slices.Sorted(slices.Values(r.byFile[id]))
	return having, slices.Sorted(maps.Keys(r.silent))
}

// detached keeps that the attachment with number seq has ended here. The number of its end is not known yet.
func (r *rows) detached(number int, seq uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if old, ok := r.all[number]; ok && old.state == rowAttached && old.seq == seq && seq != 0 {
		r.drop(number)
		r.add(number, row{seq: seq, state: rowFree})
	}
}
