package cache

import (
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/volume"
)

// pairKey names one volume of one pod.
type pairKey struct {
	volume v1.UniqueVolumeName
	pod    volume.UniquePodName
}

// pairs holds one row for each volume of each pod. A row is found by both, by its volume and by its pod, each in the time
// that the answer takes. A row never changes: a new one takes its place. Whoever uses pairs holds the lock of its state,
// but for going through all.
type pairs[R any] struct {
	byKey map[pairKey]*pair[R]
	byPod rosters[volume.UniquePodName, *pair[R]]
	rows  slots[R]
}

// pair is the place of a row.
type pair[R any] struct {
	key      pairKey
	row      *R
	slot     int32
	ofVolume seat[*pair[R]]
	ofPod    seat[*pair[R]]
}

func newPairs[R any]() pairs[R] {
	return pairs[R]{byKey: map[pairKey]*pair[R]{}, byPod: rosters[volume.UniquePodName, *pair[R]]{}}
}

// get returns the row of a pair, or nil.
func (p *pairs[R]) get(key pairKey) *R {
	if x := p.byKey[key]; x != nil {
		return x.row
	}
	return nil
}

// put adds or replaces the row of a pair; ofVolume is the roster of the volume.
func (p *pairs[R]) put(ofVolume *roster[*pair[R]], key pairKey, row *R) {
	if x := p.byKey[key]; x != nil {
		p.replace(x, row)
		return
	}
	x := &pair[R]{key: key, row: row, slot: p.rows.put(row)}
	x.ofVolume.member, x.ofPod.member = x, x
	p.byKey[key] = x
	ofVolume.join(&x.ofVolume)
	p.byPod.join(key.pod, &x.ofPod)
}

// replace replaces the row of a pair that is there.
func (p *pairs[R]) replace(x *pair[R], row *R) {
	x.row = row
	p.rows.set(x.slot, row)
}

// remove takes a pair out, if it is there, and returns its row.
func (p *pairs[R]) remove(ofVolume *roster[*pair[R]], key pairKey) *R {
	x := p.byKey[key]
	if x == nil {
		return nil
	}
	delete(p.byKey, key)
	ofVolume.leave(&x.ofVolume)
	p.byPod.leave(key.pod, &x.ofPod)
	p.rows.drop(x.slot)
	return x.row
}

// ofPod adds the rows of a pod to rows.
func (p *pairs[R]) ofPod(podName volume.UniquePodName, rows []*R) []*R {
	return collect(p.byPod[podName], rows)
}

// collect adds the rows of a roster of pairs to rows.
func collect[R any](r roster[*pair[R]], rows []*R) []*R {
	for s := r.first; s != nil; s = s.next {
		rows = append(rows, s.member.row)
	}
	return rows
}

// few is for how many rows of one pod or volume a query needs no memory but its stack.
const few = 16
