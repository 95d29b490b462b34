package cache

import (
	"sync/atomic"

	"github.com/volumekit/volumekit/volume"
)

// pairs holds one row for each volume of each pod. Rows are found by volume and pod, by volume and by pod, each in the
// time that the answer takes, and all of them can be gone through without a lock and without a copy while they change: a
// row is never changed, but replaced, by one atomic store. Whoever does anything but go through all holds the lock of
// its state.
//
// Who goes through sees each row that is there all the time exactly once, in one of its versions; one that comes or goes
// meanwhile may be seen or not, and once more when it comes back. It costs as much as the most rows there were since there were none.
type pairs[R any] struct {
	byPod  rosters[volume.UniquePodName, *pair[R]]
	chunks atomic.Pointer[[]*chunk[R]]
	free   *pair[R] // the first that was taken before and is free now
	taken  int      // how many are, or were, taken
	inUse  int
}

const chunkSize = 256

type chunk[R any] [chunkSize]pair[R]

// pair is the place of one row. It is taken again when its row has gone.
type pair[R any] struct {
	row atomic.Pointer[R] // nil: free
	pod volume.UniquePodName
	// refreshable is for the actual state: an update of the pod makes it necessary to set the volume up again.
	refreshable bool
	ofVolume    seat[*pair[R]]
	ofPod       seat[*pair[R]]
	nextFree    *pair[R]
}

// users are the pairs of one volume.
type users[R any] struct {
	roster[*pair[R]]
	byPod map[volume.UniquePodName]*pair[R] // nil while there are few
}

// few is for how many rows of one pod or one volume a query needs no memory but its stack, and no index.
const few = 16

// find returns the pair of a pod, or nil.
func (u *users[R]) find(podName volume.UniquePodName) *pair[R] {
	if u.byPod != nil {
		return u.byPod[podName]
	}
	for s := u.first; s != nil; s = s.next {
		if s.member.pod == podName {
			return s.member
		}
	}
	return nil
}

// get returns the row of a pod, or nil.
func (u *users[R]) get(podName volume.UniquePodName) *R {
	if x := u.find(podName); x != nil {
		return x.row.Load()
	}
	return nil
}

func (u *users[R]) join(x *pair[R]) {
	u.roster.join(&x.ofVolume)
	switch {
	case u.byPod != nil:
		u.byPod[x.pod] = x
	case u.count > few:
		u.byPod = make(map[volume.UniquePodName]*pair[R], 2*few)
		for other := range u.all {
			u.byPod[other.pod] = other
		}
	}
}

func (u *users[R]) leave(x *pair[R]) {
	u.roster.leave(&x.ofVolume)
	delete(u.byPod, x.pod)
	if u.count == 0 {
		u.byPod = nil
	}
}

// put adds or replaces the row of a pod among the users of a volume.
func (p *pairs[R]) put(of *users[R], podName volume.UniquePodName, row *R) *pair[R] {
	x := of.find(podName)
	if x == nil {
		x = p.take()
		x.pod = podName
		of.join(x)
		p.byPod.join(podName, &x.ofPod)
	}
	x.row.Store(row)
	return x
}

// remove takes a pair out.
func (p *pairs[R]) remove(of *users[R], x *pair[R]) {
	x.row.Store(nil)
	of.leave(x)
	p.byPod.leave(x.pod, &x.ofPod)
	x.pod, x.refreshable = "", false
	p.inUse--
	if p.inUse == 0 && p.taken > chunkSize {
		p.chunks.Store(nil) // Whoever goes through finds nothing in those that it has.
		p.free, p.taken = nil, 0
		return
	}
	x.nextFree, p.free = p.free, x
}

// take returns a free pair.
func (p *pairs[R]) take() *pair[R] {
	p.inUse++
	if x := p.free; x != nil {
		p.free, x.nextFree = x.nextFree, nil
		return x
	}
	var chunks []*chunk[R]
	if old := p.chunks.Load(); old != nil {
		chunks = *old
	}
	if p.taken == len(chunks)*chunkSize {
		chunks = append(chunks, new(chunk[R])) // Whoever goes through has the old slice, of which nothing is overwritten.
		p.chunks.Store(&chunks)
	}
	x := &chunks[p.taken/chunkSize][p.taken%chunkSize]
	x.ofVolume.member, x.ofPod.member = x, x
	p.taken++
	return x
}

// all yields the rows, in no particular order.
func (p *pairs[R]) all(yield func(*R) bool) {
	chunks := p.chunks.Load()
	if chunks == nil {
		return
	}
	for _, c := range *chunks {
		for i := range c {
			if row := c[i].row.Load(); row != nil && !yield(row) {
				return
			}
		}
	}
}

// ofPod adds the rows of a pod to rows.
func (p *pairs[R]) ofPod(podName volume.UniquePodName, rows []*R) []*R {
	for s := p.byPod[podName]; s != nil; s = s.next {
		rows = append(rows, s.member.row.Load())
	}
	return rows
}
