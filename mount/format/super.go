package format

import (
	"encoding/binary"
	"fmt"
	"io"
)

// geometry is how large a filesystem is, as its superblock says.
type geometry struct {
	fsType string
	block  int64 // bytes of a block
	blocks int64
	// slack is how many bytes at the end of a device a filesystem of that kind may have no use for.
	slack int64
}

func (g geometry) size() int64 { return g.block * g.blocks }

// reaches reports whether the filesystem has as much of a device of size bytes as it can use.
func (g geometry) reaches(size int64) bool { return g.size()+g.slack > size }

// geometryOf reads the superblock of a filesystem of a type that can grow.
func geometryOf(medium io.ReaderAt, fsType string) (geometry, error) {
	read := readExt
	switch fsType {
	case "ext2", "ext3", "ext4":
	case "xfs":
		read = readXFS
	case "btrfs":
		read = readBtrfs
	default:
		return geometry{}, fmt.Errorf("filesystem %q cannot grow: %w", fsType, ErrUnknownType)
	}
	g, err := read(medium)
	if err != nil {
		return geometry{}, fmt.Errorf("superblock: %w", err)
	}
	if g.block < 512 || g.block > 64*kib || g.blocks <= 0 || g.blocks > (1<<62)/g.block {
		return geometry{}, fmt.Errorf("%d blocks of %d bytes: %w", g.blocks, g.block, ErrDamaged)
	}
	g.fsType = fsType
	return g, nil
}

func readAt(medium io.ReaderAt, offset, length int64) ([]byte, error) {
	data := make([]byte, length)
	_, err := io.ReadFull(io.NewSectionReader(medium, offset, length), data)
	return data, err
}

// extSuperblockSize is how many bytes the superblock of ext has.
const extSuperblockSize = 1024

// Places in the superblock of ext, from fs/ext4/ext4.h.
const (
	extBlocksLow  = 4
	extBlocksHigh = 0x150
	ext64Bit      = 0x80
	extMounted    = 0x2c // when it was mounted last
	extState      = 0x3a
	extErrors     = 2    // in the state: it has errors, or resize2fs is at work
	extIdentity   = 0x68 // UUID
	extErrorCount = 0x194
)

func readExt(medium io.ReaderAt) (geometry, error) {
	super, err := readAt(medium, extSuperblock, 1024)
	if err != nil {
		return geometry{}, err
	}
	log := binary.LittleEndian.Uint32(super[extLogBlockSize:])
	if log > extMaxLogBlock {
		return geometry{}, fmt.Errorf("size of a block: %w", ErrDamaged)
	}
	blocks := uint64(binary.LittleEndian.Uint32(super[extBlocksLow:]))
	if binary.LittleEndian.Uint32(super[extIncompatOffset:])&ext64Bit != 0 {
		blocks |= uint64(binary.LittleEndian.Uint32(super[extBlocksHigh:])) << 32
	}
	block := kib << log
	// A last group that is too small for its own tables is left out; a group has as many blocks as a block has bits.
	return geometry{block: block, blocks: int64(blocks), slack: 8 * block * block}, nil
}

// More places in the superblock of ext.
const (
	extFirstBlock    = 0x14
	extGroupBlocks   = 0x20
	extCompat        = 0x5c
	extReservedTable = 0xce
	extTableEntry    = 0xfe

	extResizeInode = 0x10 // compatible: blocks are reserved for more of the table of groups
	extMetaGroups  = 0x10 // incompatible: that table lies in the groups
)

// movesBlocks reports whether an ext cannot grow to size bytes where it lies: the table of its groups needs more blocks than
// are reserved for it, so that what comes after it has to make room.
func movesBlocks(medium io.ReaderAt, g geometry, size int64) (bool, error) {
	super, err := readAt(medium, extSuperblock, 1024)
	if err != nil {
		return false, err
	}
	number := binary.LittleEndian
	incompatible := number.Uint32(super[extIncompatOffset:])
	if incompatible&extMetaGroups != 0 {
		return false, nil
	}
	entry := int64(32)
	if incompatible&ext64Bit != 0 {
		entry = max(entry, int64(number.Uint16(super[extTableEntry:])))
	}
	inGroup, first := int64(number.Uint32(super[extGroupBlocks:])), int64(number.Uint32(super[extFirstBlock:]))
	if inGroup == 0 {
		return false, fmt.Errorf("superblock: blocks of a group: %w", ErrDamaged)
	}
	table := func(blocks int64) int64 {
		groups := (blocks - first + inGroup - 1) / inGroup
		return (groups*entry + g.block - 1) / g.block
	}
	reserved := int64(0)
	if number.Uint32(super[extCompat:])&extResizeInode != 0 {
		reserved = int64(number.Uint16(super[extReservedTable:]))
	}
	return table(size/g.block)-table(g.blocks) > reserved, nil
}

// readXFS reads sb_blocksize and sb_dblocks, which are big-endian.
func readXFS(medium io.ReaderAt) (geometry, error) {
	super, err := readAt(medium, 0, 512)
	if err != nil {
		return geometry{}, err
	}
	return xfsGeometry(int64(binary.BigEndian.Uint32(super[4:])), int64(binary.BigEndian.Uint64(super[8:]))), nil
}

// xfsGeometry: a last allocation group of less than 64 blocks is left out.
func xfsGeometry(block, blocks int64) geometry {
	return geometry{fsType: "xfs", block: block, blocks: blocks, slack: 64 * block}
}

// Places in the superblock of btrfs and in the item of the device that it is on, from fs/btrfs/ctree.h.
const (
	btrfsSuperblock  = 0x10000
	btrfsSectorSize  = 0x90
	btrfsDeviceBytes = 0xc9 + 8
)

func readBtrfs(medium io.ReaderAt) (geometry, error) {
	super, err := readAt(medium, btrfsSuperblock, 4096)
	if err != nil {
		return geometry{}, err
	}
	sector := int64(binary.LittleEndian.Uint32(super[btrfsSectorSize:]))
	if sector == 0 {
		return geometry{}, fmt.Errorf("size of a sector: %w", ErrDamaged)
	}
	return btrfsGeometry(sector, int64(binary.LittleEndian.Uint64(super[btrfsDeviceBytes:]))), nil
}

func btrfsGeometry(sector, size int64) geometry {
	return geometry{fsType: "btrfs", block: sector, blocks: size / sector, slack: sector}
}
