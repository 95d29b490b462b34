package usage

import "sync"

const (
	// linkShards is how many parts a linkSet has, a power of two. Two workers that find links at once rarely meet in one.
	linkShards = 32
	// minLinks is how many places a part has at the start, a power of two.
	minLinks = 64
)

// linkSet is a set of the inodes that have several links, shared by the workers of a walk. Files with one link, which most
// are, never touch it. An inode costs eight bytes and the room to find it.
type linkSet struct {
	dev    uint64
	shards [linkShards]linkShard
}

type linkShard struct {
	mu     sync.Mutex
	table  []uint64 // inode numbers of dev where the hash says, or after it; zero is a free place
	used   int
	others map[inode]struct{} // of other devices, as subvolumes of btrfs are, and inode zero
	_      [24]byte           // two parts do not share a line of the processor's cache
}

func newLinkSet(dev uint64) *linkSet { return &linkSet{dev: dev} }

// add adds an inode and reports whether it was not there yet.
func (s *linkSet) add(id inode) bool {
	h := spread(id.ino)
	part := &s.shards[h%linkShards]
	part.mu.Lock()
	defer part.mu.Unlock()
	if id.dev != s.dev || id.ino == 0 {
		return part.addOther(id)
	}
	return part.add(id.ino, h/linkShards)
}

func (p *linkShard) addOther(id inode) bool {
	if _, ok := p.others[id]; ok {
		return false
	}
	if p.others == nil {
		p.others = map[inode]struct{}{}
	}
	p.others[id] = struct{}{}
	return true
}

func (p *linkShard) add(ino, hash uint64) bool {
	if p.used*4 >= len(p.table)*3 {
		p.grow()
	}
	if !put(p.table, ino, hash) {
		return false
	}
	p.used++
	return true
}

func (p *linkShard) grow() {
	table := make([]uint64, max(2*len(p.table), minLinks))
	for _, ino := range p.table {
		if ino != 0 {
			put(table, ino, spread(ino)/linkShards)
		}
	}
	p.table = table
}

// put puts ino into a table that has room, and reports whether it was not there yet.
func put(table []uint64, ino, hash uint64) bool {
	mask := uint64(len(table) - 1)
	for i := hash & mask; ; i = (i + 1) & mask {
		switch table[i] {
		case ino:
			return false
		case 0:
			table[i] = ino
			return true
		}
	}
}

// spread makes of inode numbers, which are often in a row, numbers that differ in every bit (the finalizer of splitmix64).
func spread(n uint64) uint64 {
	n ^= n >> 30
	n *= 0xbf58476d1ce4e5b9
	n ^= n >> 27
	n *= 0x94d049bb133111eb
	return n ^ n>>31
}
