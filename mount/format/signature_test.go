package format

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestRecogniseMarks(t *testing.T) {
	for _, m := range magicNumbers {
		start := make([]byte, probeSize)
		copy(start[m.sig.Offset:], m.magic)
		assert.Equal(t, m.sig, recognise(start), m.sig.Type)
	}
}

func TestRecogniseNothing(t *testing.T) {
	assert.Equal(t, Signature{}, recognise(make([]byte, probeSize)))
	assert.Equal(t, Signature{}, recognise(nil), "an empty device")
	assert.Equal(t, Signature{}, recognise(bytes.Repeat([]byte{0x11}, probeSize)))
}

func TestRecogniseExt(t *testing.T) {
	for name, c := range map[string]struct{ compat, incompat, roCompat uint32 }{
		"ext2": {0, 0x2, 0x1},
		"ext3": {0x4, 0x2, 0x3},
		"ext4": {0x4, 0x42, 0x7b},
	} {
		start := make([]byte, probeSize)
		copy(start[extSuperblock+extMagicOffset:], extMagic)
		binary.LittleEndian.PutUint32(start[extSuperblock+92:], c.compat)
		binary.LittleEndian.PutUint32(start[extSuperblock+96:], c.incompat)
		binary.LittleEndian.PutUint32(start[extSuperblock+100:], c.roCompat)
		start[510], start[511] = 0x55, 0xaa
		assert.Equal(t, Signature{Type: name, Kind: Filesystem, Offset: 1080}, recognise(start))
		assert.Equal(t, Signature{Type: "dos", Kind: PartitionTable, Offset: 510}, recognise(start[:extSuperblock+extMagicOffset+2]),
			"a superblock that is cut off")
	}
}

func TestRecogniseLVM(t *testing.T) {
	for _, offset := range []int64{0, 512, 1536} {
		start := make([]byte, probeSize)
		copy(start[offset:], "LABELONE")
		copy(start[offset+24:], "LVM2 001")
		assert.Equal(t, Signature{Type: "LVM2_member", Kind: Container, Offset: offset}, recognise(start))
	}
}

func TestFATIsNoPartitionTable(t *testing.T) {
	start := make([]byte, probeSize)
	start[510], start[511] = 0x55, 0xaa
	assert.Equal(t, "dos", recognise(start).Type)
	copy(start[82:], "FAT32   ")
	assert.Equal(t, "vfat", recognise(start).Type)
	copy(start[3:], "NTFS    ")
	assert.Equal(t, "ntfs", recognise(start).Type)
}

func TestSignatureString(t *testing.T) {
	assert.Equal(t, "unknown data", Signature{}.String())
	assert.Equal(t, "gpt partition table", Signature{Type: "gpt", Kind: PartitionTable}.String())
	assert.Equal(t, "crypto_LUKS container of other volumes", Signature{Type: "crypto_LUKS", Kind: Container}.String())
	assert.Equal(t, "swap swap space", Signature{Type: "swap", Kind: Swap}.String())
}

type unreadable struct{}

func (unreadable) ReadAt([]byte, int64) (int, error) { return 0, errBadSector }

var errBadSector = errors.New("bad sector")

func TestProbeOfTheUnreadableIsAnError(t *testing.T) {
	_, err := probe(t.Context(), unreadable{})
	require.ErrorIs(t, err, errBadSector)
}

func FuzzRecognise(f *testing.F) {
	for _, m := range magicNumbers {
		start := make([]byte, probeSize)
		copy(start[m.sig.Offset:], m.magic)
		f.Add(start)
	}
	f.Fuzz(func(t *testing.T, start []byte) {
		found := recognise(start)
		if (found.Type == "") != (found.Kind == Unknown) {
			t.Errorf("%+v has a type without a kind, or the reverse", found)
		}
		if found.Offset > int64(len(start)) {
			t.Errorf("%+v lies outside of %d bytes", found, len(start))
		}
	})
}
