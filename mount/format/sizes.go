package format

import "math"

// Sizes are those that the filesystems of one type can have, in bytes.
type Sizes struct {
	// Least and Most are the sizes with which one can be made.
	Least, Most int64
	// LeastGrown is the least size to which one grows.
	LeastGrown int64
}

// SizesOf returns the sizes of a type that [Make] knows; of any other it says nothing: from 0 to the greatest number.
func SizesOf(fsType string) Sizes {
	switch fsType {
	case "ext2", "ext3", "ext4":
		// There is no journal in less than 8 MiB. Blocks have 4 KiB, and numbers of 48 bits.
		return Sizes{Least: leastOfAll, Most: 1 << 60}
	case "xfs":
		return Sizes{Least: 300 * mib, Most: math.MaxInt64} // mkfs.xfs refuses less
	case "btrfs":
		return Sizes{Least: 128 * mib, Most: math.MaxInt64, LeastGrown: btrfsLeast} // mkfs.btrfs refuses less than about 109 MiB
	}
	return Sizes{Most: math.MaxInt64}
}

// leastOfAll is the least size that any filesystem has that is made here.
const leastOfAll = 8 * mib

// btrfsLeast is the least size to which the kernel resizes a device of a btrfs.
const btrfsLeast = 256 * mib

// IsWorthGrowing reports whether a filesystem leaves more of its device unused than it would if it were made there: an ext4
// has no use for the last part if that is hardly larger than what a group of blocks needs for itself, which is less than a
// mebibyte with the blocks that a small one has.
func (r Room) IsWorthGrowing() bool {
	spare := r.Device - r.Filesystem
	return spare >= 16*mib || spare >= mib && r.Device < 512*mib
}
