package loop

import (
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"fmt"
	"os"
	"strings"
)

// The sentinels of this package. Match them with errors.Is. The errno of a failed system call matches in the same way:
// errors.Is(err, unix.EBUSY).
var (
	// ErrInUse says that another program holds a device, or that a file is attached with other options than the call asks
	// for. Nothing was changed, unless the error matches mount.ErrUncertain too.
	ErrInUse = errors.New("loop device in use")
	// ErrNotAttached says that no loop device has the file.
	ErrNotAttached = errors.New("not attached to a loop device")
	// ErrNotRegular says that the backing file is not a regular file.
	ErrNotRegular = errors.New("not a regular file")
	// ErrNoDevice says that no loop device could be attached: the loop module, the control device or the node of a device is
	// missing, or other programs took each free device first, several times.
	ErrNoDevice = errors.New("no loop device available")
	// ErrShrink says that a backing file has become smaller than its device. The device was not changed.
	ErrShrink = errors.New("a loop device is never made smaller")
)

// Device is the state of an attached loop device when it was read. It is a value: it holds nothing open.
type Device struct {
	// Path is the absolute path of the device's node, such as "/dev/loop3".
	Path string
	// Number is the device's index: 3 in "/dev/loop3".
	Number int
	// Major and Minor are the device's number, as the mount table shows it.
	Major, Minor uint32
	// DiskSeq is the kernel's number of this attachment, which no other attachment gets until the next boot; 0 before Linux 5.15.
	// With it [Manager.Detach] proves that the device still has the file without a call to the file's filesystem, which may hang.
	DiskSeq uint64
	// BackingDevice and BackingInode identify the backing file: st_dev, in the kernel's encoding, and st_ino.
	BackingDevice, BackingInode uint64
	// BackingRdev is st_rdev of the block device that [Manager.HoldDevice] holds; 0 for a regular file.
	BackingRdev uint64
	// BackingPath is the absolute path of the backing file as the kernel knows it, without the mark of a deleted file.
	// It is for people, and for files that have no name any more. It is empty if the kernel does not report it.
	BackingPath string
	// Deleted is true if the backing file was deleted at BackingPath.
	Deleted bool
	// Label is the [KeptLabel] of the label in [AttachOptions].
	Label string
	// ReadOnly is true if the device refuses writes.
	ReadOnly bool
	// DirectIO is true if the device bypasses the page cache of the backing file.
	DirectIO bool
	// AutoClear is true if the kernel detaches the device with its last close.
	AutoClear bool
	// Silent is true if the device did not answer in time, because the filesystem of its backing file hangs. Then the path, the
	// numbers and BackingPath are set, and the identity of the file if that was known before. Only [Manager.Devices] returns such
	// devices.
	Silent bool
	// Offset and SizeLimit are the part of the file that the device shows, in bytes. Both are 0 for a whole file.
	Offset, SizeLimit uint64
}

// Whole reports whether the device shows its backing file from the first byte to the last.
func (d Device) Whole() bool { return d.Offset == 0 && d.SizeLimit == 0 }

// Has reports whether info describes the backing file of d. info must be from Stat of an open file, or from Lstat.
func (d Device) Has(info os.FileInfo) bool { return d.has(info) }

// IsLabelled reports whether the device was attached with the label. See [KeptLabel].
func (d Device) IsLabelled(label string) bool { return d.Label == KeptLabel(label) }

// MayBeLabelled is [Device.IsLabelled]. It is also true if an older version attached the device with a long label: it kept only the
// first 63 bytes, which other labels may share. So compare the file as well.
func (d Device) MayBeLabelled(label string) bool {
	return d.IsLabelled(label) || len(label) >= keptBytes && d.Label == OlderLabel(label)
}

// Holds reports whether d holds other, so that no other device gets its number. [Manager.HoldDevice] attaches such a device.
func (d Device) Holds(other Device) bool { return d.holds(other) }

// AttachOptions says how to attach a file. The zero value attaches all of it for reading and writing, through the page
// cache, with the kernel's sector size.
type AttachOptions struct {
	// ReadOnly makes a device that refuses writes. The file is then opened for reading only.
	ReadOnly bool
	// DirectIO makes the device bypass the page cache of the backing file, so data is cached once and not twice. If the filesystem
	// cannot do that, the device is attached without it, and [Device] shows that.
	DirectIO bool
	// SectorSize is the logical sector size of the device in bytes: 512, 1024, 2048 or 4096. Zero leaves it to the
	// kernel.
	SectorSize uint32
	// Offset is the byte of the file at which the device begins, a multiple of the sector size.
	Offset uint64
	// SizeLimit is the greatest size of the device in bytes, a multiple of the sector size. Zero: up to the file's end.
	SizeLimit uint64
	// Label is a text that the kernel keeps with the device (lo_file_name). It identifies the device after the file was deleted.
	// Empty means the path of the file. For a long label the kernel keeps a digest: see [KeptLabel].
	Label string
}

// defaultSector is the smallest sector size that the kernel chooses by itself.
const defaultSector = 512

func (o AttachOptions) check() error {
	switch o.SectorSize {
	case 0, 512, 1024, 2048, 4096:
	default:
		return fmt.Errorf("sector size %d: use 512, 1024, 2048 or 4096: %w", o.SectorSize, os.ErrInvalid)
	}
	sector := uint64(max(o.SectorSize, defaultSector))
	if o.Offset%sector != 0 || o.SizeLimit%sector != 0 {
		return fmt.Errorf("offset %d and size limit %d: use multiples of the sector size, %d: %w",
			o.Offset, o.SizeLimit, sector, os.ErrInvalid)
	}
	return nil
}

// keptBytes is how many bytes of a label the kernel keeps: LO_NAME_SIZE, 64, less the NUL at the end.
const keptBytes = 63

// digestChars is the length of the digest of a label that is too long: 128 bits in base 32.
const digestChars = 26

// OlderLabel returns the form of a label that older versions gave the kernel: its first 63 bytes.
func OlderLabel(label string) string { return label[:min(len(label), keptBytes)] }

// KeptLabel returns the form of a label that the kernel keeps. Different labels have different forms. A label of up to 62 bytes stays
// as it is. A longer one becomes 63 bytes: its beginning, a tilde and a digest of the whole label.
func KeptLabel(label string) string {
	if len(label) < keptBytes {
		return label
	}
	sum := sha256.Sum256([]byte(label))
	digest := strings.ToLower(base32.HexEncoding.WithPadding(base32.NoPadding).EncodeToString(sum[:16]))
	return label[:keptBytes-1-digestChars] + "~" + digest
}
