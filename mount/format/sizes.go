package format

import "math"

// Sizes are the sizes that a filesystem of one type can have, in bytes.
type Sizes struct {
	// Least and Most limit the size when the filesystem is made.
	Least, Most int64
	// LeastGrown is the smallest size to which it can be expanded.
	LeastGrown int64
}

// SizesOf returns the sizes of a type that [Make] knows. For any other type it returns no limits: from 0 to the largest
// number.
func SizesOf(fsType string) Sizes {
	switch fsType {
	case "ext2", "ext3", "ext4":
		// Below 8 MiB there is no journal. Blocks have 4 KiB, and block numbers have 48 bits.
		return Sizes{Least: leastOfAll, Most: 1 << 60}
	case "xfs":
		return Sizes{Least: 300 * mib, Most: math.MaxInt64} // mkfs.xfs refuses smaller ones
	case "btrfs":
		return Sizes{Least: 128 * mib, Most: math.MaxInt64, LeastGrown: btrfsLeast} // mkfs.btrfs refuses less than about 109 MiB
	}
	return Sizes{Most: math.MaxInt64}
}

// leastOfAll is the smallest size of any filesystem that this package makes.
const leastOfAll = 8 * mib

// btrfsLeast is the least size to which the kernel resizes a device of a btrfs.
const btrfsLeast = 256 * mib

// IsWorthGrowing reports whether the filesystem leaves more of its device unused than a newly made one would. An ext4 does
// not use the last part of its device if that is hardly larger than the metadata of one block group. With the block size of
// a small ext4, that is less than a mebibyte.
func (r Room) IsWorthGrowing() bool {
	spare := r.Device - r.Filesystem
	return spare >= 16*mib || spare >= mib && r.Device < 512*mib
}
