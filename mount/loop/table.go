package loop

import (
	"maps"
	"slices"
	"sync"
)

// identity identifies a backing file.
type identity struct{ dev, ino uint64 }

// rowState is the known state of a device.
type rowState uint8

const (
	rowFree     rowState = iota // it has no file
	rowAttached                 // it has the file of row.id
	rowSilent                   // it did not answer
)

// row is the known state of one device. It is valid while the device has the sequence number seq: the kernel gives each
// disk a new number, from one counter for all disks of the machine, whenever the disk gets or loses its file.
type row struct {
	seq   uint64 // 0 if the kernel has no such numbers; the row is then never trusted
	state rowState
	id    identity
}

// rows holds the known states of all devices. Its methods may be called from several goroutines at once.
//
// Each attachment and each detachment increments the kernel's counter. If a change of this process gets the number
// after the last known one, no other program has changed a disk in between, and the table is still complete. So a
// Manager proves that a file has only one device without a scan of all devices.
//
// The kernel increments the counter before it gives the device its file. It holds a lock of the device until that is
// done, and a read of the device's state waits for the lock. So a scan also finds a change that is counted and not done
// yet. The kernel takes two instructions between the increment and the write of the number. A read at that very instant
// takes the change for a future one; the next read finds it.
type rows struct {
	mu     sync.Mutex
	all    map[int]row
	byFile map[identity][]int // the device numbers of all rows in state rowAttached, by their file
	silent map[int]struct{}   // the device numbers of all rows in state rowSilent
	upTo   uint64             // every change with a number up to this one is in all
	known  bool               // all devices were scanned once
}

func newRows() *rows {
	return &rows{all: map[int]row{}, byFile: map[identity][]int{}, silent: map[int]struct{}{}}
}

// put stores a row, unless a newer one is known.
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

// Only add and drop change all, byFile and silent.
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

// setOwn stores the result of a change of this process. It reports whether no foreign change was in between: then the rows
// are complete up to this one.
func (r *rows) setOwn(number int, found row) bool {
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

// isSole reports whether the table has every change up to the attachment of a device, and no other device with its
// file. A complete table alone proves nothing: since this call searched for a device of the file, another call may have
// completed the table with a device that another process attached to the file.
func (r *rows) isSole(device Device, file identity) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	having := r.byFile[file]
	return r.covers(device.DiskSeq) && len(r.silent) == 0 && len(having) == 1 && having[0] == device.Number
}

func (r *rows) covers(seq uint64) bool { return seq != 0 && seq <= r.upTo }

// scanned records a scan of all devices, which began after the change with number seq. before are the devices that were
// known when the scan began. Those that are not in present, which is sorted, were removed.
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

// isKnown reports whether all devices were scanned once.
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

// with returns the devices that have the file of id, and those that do not report their file.
func (r *rows) with(id identity) (having, silent []int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	having = slices.Sorted(slices.Values(r.byFile[id]))
	return having, slices.Sorted(maps.Keys(r.silent))
}

// detached records the end of the attachment with number seq by this process. The number of the detachment is not known
// yet.
func (r *rows) detached(number int, seq uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if old, ok := r.all[number]; ok && old.state == rowAttached && old.seq == seq && seq != 0 {
		r.drop(number)
		r.add(number, row{seq: seq, state: rowFree})
	}
}
