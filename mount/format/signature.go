package format

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
)

// Kind is what a signature identifies.
type Kind uint8

// The kinds. The zero value is the kind of an unrecognised signature.
const (
	Unknown        Kind = iota
	Filesystem          // can be mounted
	PartitionTable      // a partitioned disk
	Container           // holds other volumes: LVM, LUKS, RAID, ...
	Swap                // swap space
)

// String returns the kind in lower case.
func (k Kind) String() string {
	switch k {
	case Filesystem:
		return "filesystem"
	case PartitionTable:
		return "partition table"
	case Container:
		return "container of other volumes"
	case Swap:
		return "swap space"
	case Unknown:
	}
	return "unknown data"
}

// Signature is the result of recognising the content of a device.
type Signature struct {
	// Type is the name that mount(8) and blkid(8) use, such as "ext4", "xfs", "gpt" or "crypto_LUKS". It is empty if
	// nothing was recognised.
	Type string
	// Kind is what the signature identifies.
	Kind Kind
	// Offset is where the magic number stands, in bytes from the start.
	Offset int64
}

// String returns the type and the kind, such as "ext4 filesystem".
func (s Signature) String() string {
	if s.Type == "" {
		return Unknown.String()
	}
	return s.Type + " " + s.Kind.String()
}

// magicNumber is one magic number.
type magicNumber struct {
	sig   Signature
	magic string
}

// at makes a mark that its magic number alone identifies.
func at(offset int64, magic, name string, kind Kind) magicNumber {
	return magicNumber{sig: Signature{Type: name, Kind: kind, Offset: offset}, magic: magic}
}

// extMagicOffset is where the superblock of ext2, ext3 and ext4 starts, and where in it the magic number stands.
const (
	extSuperblock  = 1024
	extMagicOffset = 56
	extMagic       = "\x53\xef"
)

// magicNumbers are listed in the order in which they are tried. The least specific come last: the boot sector of a FAT or NTFS
// ends like a partition table.
//
// Sources: the headers of the kernel (ext4, xfs, btrfs, f2fs, erofs, squashfs, md), cryptsetup's and LVM's on-disk
// formats, the UEFI specification for GPT.
var magicNumbers = []magicNumber{
	at(0, "LUKS\xba\xbe", "crypto_LUKS", Container),
	at(0, "XFSB", "xfs", Filesystem),
	at(0x10040, "_BHRfS_M", "btrfs", Filesystem),
	at(0, "hsqs", "squashfs", Filesystem),
	at(1024, "\xe2\xe1\xf5\xe0", "erofs", Filesystem),
	at(1024, "\x10\x20\xf5\xf2", "f2fs", Filesystem),
	at(0, "\xfc\x4e\x2b\xa9", "linux_raid_member", Container),
	at(4096, "\xfc\x4e\x2b\xa9", "linux_raid_member", Container),
	at(4096, "\xc6\x85\x73\xf6\x4e\x1a\x45\xca", "bcache", Container),
	at(0x8001, "CD001", "iso9660", Filesystem),
	at(0x8000, "JFS1", "jfs", Filesystem),
	at(0x10034, "ReIsEr", "reiserfs", Filesystem),
	at(0xff6, "SWAPSPACE2", "swap", Swap),
	at(0x3ff6, "SWAPSPACE2", "swap", Swap),
	at(0xfff6, "SWAPSPACE2", "swap", Swap),
	at(3, "EXFAT   ", "exfat", Filesystem),
	at(3, "NTFS    ", "ntfs", Filesystem),
	at(54, "FAT1", "vfat", Filesystem),
	at(82, "FAT32   ", "vfat", Filesystem),
	at(512, "EFI PART", "gpt", PartitionTable),
	at(4096, "EFI PART", "gpt", PartitionTable),
	at(510, "\x55\xaa", "dos", PartitionTable),
}

// probeSize is how many bytes from the start contain all primary magic numbers.
const probeSize = 0x10040 + 64

// probe reads the start of a medium once and recognises what it holds.
func probe(ctx context.Context, medium io.ReaderAt) (Signature, error) {
	if err := ctx.Err(); err != nil {
		return Signature{}, fmt.Errorf("probing: %w", context.Cause(ctx))
	}
	start := make([]byte, probeSize)
	n, err := medium.ReadAt(start, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return Signature{}, fmt.Errorf("cannot read what is there: %w", err)
	}
	return recognise(start[:n]), nil
}

// recognise looks for magic numbers in the start of a device.
func recognise(start []byte) Signature {
	if s, ok := recogniseExt(start, extSuperblock); ok {
		return s
	}
	if s, ok := recogniseLVM(start); ok {
		return s
	}
	for _, m := range magicNumbers {
		if hasMagic(start, m.sig.Offset, m.magic) {
			return m.sig
		}
	}
	return Signature{}
}

func hasMagic(data []byte, offset int64, magic string) bool {
	end := offset + int64(len(magic))
	return end <= int64(len(data)) && bytes.Equal(data[offset:end], []byte(magic))
}

// Feature bits of an ext superblock, from fs/ext4/ext4.h. They distinguish ext2, ext3 and ext4.
const (
	extCompatJournal  = 0x4
	extIncompatOfExt3 = 0x2 | 0x4 | 0x8 | 0x10 // filetype, recover, journal_dev, meta_bg
	extRoCompatOfExt3 = 0x1 | 0x2 | 0x4        // sparse_super, large_file, btree_dir
	extIncompatOffset = 96
)

// recogniseExt looks for an ext superblock that starts at offset.
func recogniseExt(data []byte, offset int64) (Signature, bool) {
	if !hasMagic(data, offset+extMagicOffset, extMagic) || int64(len(data)) < offset+extIncompatOffset+8 {
		return Signature{}, false
	}
	compat := binary.LittleEndian.Uint32(data[offset+extIncompatOffset-4:])
	incompat := binary.LittleEndian.Uint32(data[offset+extIncompatOffset:])
	roCompat := binary.LittleEndian.Uint32(data[offset+extIncompatOffset+4:])
	name := "ext2"
	switch {
	case incompat&^extIncompatOfExt3 != 0 || roCompat&^extRoCompatOfExt3 != 0:
		name = "ext4"
	case compat&extCompatJournal != 0:
		name = "ext3"
	}
	return Signature{Type: name, Kind: Filesystem, Offset: offset + extMagicOffset}, true
}

// The checksum of the superblock, from fs/ext4/super.c. It is the crc32c of all bytes before it, without the final
// inversion. It exists if the feature metadata_csum is on, which is the default.
const (
	extMetadataCsum   = 0x400
	extChecksumOffset = 1020
	extLogBlockSize   = 24
	extMaxLogBlock    = 6 // 64 KiB
)

// extSuperblockIsBroken reports whether a superblock of 1024 bytes contradicts itself.
func extSuperblockIsBroken(superblock []byte) bool {
	if binary.LittleEndian.Uint32(superblock[extLogBlockSize:]) > extMaxLogBlock {
		return true
	}
	if binary.LittleEndian.Uint32(superblock[extIncompatOffset+4:])&extMetadataCsum == 0 {
		return false
	}
	sum := ^crc32.Checksum(superblock[:extChecksumOffset], crc32.MakeTable(crc32.Castagnoli))
	return sum != binary.LittleEndian.Uint32(superblock[extChecksumOffset:])
}

// recogniseLVM looks for the label of a physical volume, which is in one of the first four sectors.
func recogniseLVM(start []byte) (Signature, bool) {
	for offset := int64(0); offset < 4*512; offset += 512 {
		if hasMagic(start, offset, "LABELONE") && hasMagic(start, offset+24, "LVM2 001") {
			return Signature{Type: "LVM2_member", Kind: Container, Offset: offset}, true
		}
	}
	return Signature{}, false
}
