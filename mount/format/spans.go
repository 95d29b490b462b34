package format

import (
	"cmp"
	"math"
	"slices"
)

// span is a part of a device in bytes, from start up to and without end.
type span struct{ start, end int64 }

// What of a device is read to prove that it is blank.
const (
	kib = int64(1) << 10
	mib = int64(1) << 20
	gib = int64(1) << 30

	wholeUpTo   = 64 * mib // a device of this size is read entirely
	endSize     = 8 * mib  // the first and last part: labels, tables, the second head of LUKS2, md, GPT, ZFS
	spanSize    = 64 * kib // around a backup superblock
	sampleCount = 256      // spread evenly over the whole
)

// superblockSpans returns the parts of a device of size bytes that are read, in order and without overlap.
func superblockSpans(size int64) []span {
	if size <= wholeUpTo {
		return merge([]span{{0, size}}, size)
	}
	spans := []span{{0, endSize}, {size - endSize, size}}
	for _, offset := range slices.Concat(extBackups(size), btrfsBackups(), xfsBackups(size), ocfs2Backups(), samples(size)) {
		spans = append(spans, span{offset, offset + spanSize})
	}
	return merge(spans, size)
}

// bigallocRatio is how many blocks mke2fs puts into a cluster unless it is told otherwise (bigalloc).
const bigallocRatio = 16

// extBackups returns where ext2, ext3 and ext4 keep copies of the superblock: at the start of the groups 1 and the
// powers of 3, 5 and 7 (sparse_super) and of the last one (sparse_super2), for each block size that there is. A group has
// as many blocks, or clusters, as one block has bits; with blocks of 1 KiB the first group starts at block 1.
func extBackups(size int64) []int64 {
	var offsets []int64
	for block := kib; block <= 64*kib; block *= 2 {
		first := int64(0)
		if block == kib {
			first = block
		}
		for _, group := range []int64{8 * block * block, bigallocRatio * 8 * block * block} {
			last := max(0, size-first-1) / group
			for _, n := range append(sparseGroups(size/group), last) {
				offsets = append(offsets, first+n*group)
			}
		}
	}
	return offsets
}

// sparseGroups returns 1 and the powers of 3, 5 and 7 up to limit.
func sparseGroups(limit int64) []int64 {
	groups := []int64{1}
	for _, base := range []int64{3, 5, 7} {
		for n := base; n <= limit && n < math.MaxInt64/base; n *= base {
			groups = append(groups, n)
		}
	}
	return groups
}

// btrfsBackups returns where btrfs keeps its mirrors of the superblock.
func btrfsBackups() []int64 { return []int64{64 * kib, 64 * mib, 256 * gib} }

// ocfs2Backups returns where ocfs2 keeps copies of its superblock: at 1 GiB, and then at four times the place before.
func ocfs2Backups() []int64 { return []int64{gib, 4 * gib, 16 * gib, 64 * gib, 256 * gib, 1024 * gib} }

// xfsBackups returns where xfs puts the heads of its allocation groups: mkfs.xfs makes four of up to 1 TiB, or more of
// about 1 TiB. A group is rounded down, by a stripe at most, so that its head lies before the exact place.
func xfsBackups(size int64) []int64 {
	const tib = 1024 * gib
	count := max(4, (size+tib-1)/tib)
	var offsets []int64
	for n := int64(1); n < min(count, 64); n++ {
		exact := size / count * n
		for back := range int64(4) {
			offsets = append(offsets, max(0, exact-back*spanSize))
		}
	}
	return offsets
}

func samples(size int64) []int64 {
	offsets := make([]int64, sampleCount)
	for i := range offsets {
		offsets[i] = size / sampleCount * int64(i) &^ (4*kib - 1)
	}
	return offsets
}

// merge clips spans to the device, orders them and joins those that touch.
func merge(spans []span, size int64) []span {
	slices.SortFunc(spans, func(a, b span) int { return cmp.Compare(a.start, b.start) })
	var merged []span
	for _, s := range spans {
		s.end = min(s.end, size)
		if s.start >= s.end {
			continue
		}
		if n := len(merged); n > 0 && s.start <= merged[n-1].end {
			merged[n-1].end = max(merged[n-1].end, s.end)
			continue
		}
		merged = append(merged, s)
	}
	return merged
}
