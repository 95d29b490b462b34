package format

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/volumekit/volumekit/mount"
)

// Keeper keeps a few bytes beside a filesystem, each under a name, so that they are there after a kill and a power cut, too.
// [Directory] does, and what [SetAttribute] puts into an image.
type Keeper interface {
	// Keep keeps less than 2 KiB in the place of what was kept under the name; nil means that nothing is any more. It may be
	// killed midway: what is then there is not used. Where nothing can be kept the error matches mount.ErrUnsupported.
	Keep(ctx context.Context, name string, data []byte) error
	// Kept returns what is kept under the name; nil: nothing.
	Kept(ctx context.Context, name string) ([]byte, error)
}

// The names under which superblocks are kept. The programs write theirs in parts: one that is killed in between leaves none.
const (
	keptGrowing  = "growing"
	keptChecking = "checking"
)

// CheckKept is [Check] that may be killed at any moment, as by an agent that is: the next CheckKept goes on. It keeps the
// superblock of an ext2, ext3 or ext4 meanwhile, and puts it back where it finds it broken then, if the filesystem is the same
// one and was not mounted since. A superblock that is broken for another reason is left alone. A filesystem on which [GrowKept]
// was killed is repaired by all that e2fsck proposes (e2fsck -f -y), which loses nothing, since that moves no blocks.
func CheckKept(ctx context.Context, path, fsType string, keeper Keeper) (CheckResult, error) {
	if !isExt(fsType) {
		return Check(ctx, path, fsType)
	}
	growing, err := keeper.Kept(ctx, keptGrowing)
	if err != nil {
		return CheckResult{}, err
	}
	if growing != nil {
		return mendKept(ctx, path, growing, keeper)
	}
	if err := beginCheck(ctx, path, keeper); err != nil {
		return CheckResult{}, err
	}
	result, err := Check(ctx, path, fsType)
	if err != nil && !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrNoTool) {
		return result, err // It may have been broken off.
	}
	return result, errors.Join(err, keeper.Keep(ctx, keptChecking, nil))
}

func isExt(fsType string) bool { return fsType == "ext2" || fsType == "ext3" || fsType == "ext4" }

// beginCheck ends a check that was killed, and keeps the superblock for the next.
func beginCheck(ctx context.Context, path string, keeper Keeper) error {
	kept, err := keeper.Kept(ctx, keptChecking)
	if err == nil && kept != nil {
		_, err = onPath(ctx, path, os.O_RDWR, func(_ context.Context, file *os.File) (nothing, error) {
			return nothing{}, restoreSuperblock(file, unpack(kept))
		})
	}
	if err != nil {
		return err
	}
	err = keepSuperblock(ctx, path, keptChecking, keeper)
	if errors.Is(err, mount.ErrUnsupported) {
		return nil // A check that is killed takes a person then, who is told by the next.
	}
	return err
}

func mendKept(ctx context.Context, path string, kept []byte, keeper Keeper) (CheckResult, error) {
	result, err := onPath(ctx, path, os.O_RDWR, func(ctx context.Context, file *os.File) (CheckResult, error) {
		return mend(ctx, file, unpack(kept))
	})
	if err == nil {
		err = keeper.Keep(ctx, keptGrowing, nil)
	}
	return result, err
}

// GrowKept is [Grow] of a filesystem that is mounted nowhere. When it is killed, [CheckKept] with the same keeper repairs what it
// leaves. Where nothing can be kept the error matches mount.ErrUnsupported, and nothing was done.
func GrowKept(ctx context.Context, path string, keeper Keeper) (GrowResult, error) {
	if err := keepSuperblock(ctx, path, keptGrowing, keeper); err != nil {
		return GrowResult{}, err
	}
	result, err := Grow(ctx, path, GrowOptions{})
	if err != nil && !errors.Is(err, ErrNoTool) && !errors.Is(err, mount.ErrUnsupported) {
		return result, err
	}
	return result, errors.Join(err, keeper.Keep(ctx, keptGrowing, nil))
}

// keepSuperblock keeps the superblock of an ext.
func keepSuperblock(ctx context.Context, path, name string, keeper Keeper) error {
	super, err := onPath(ctx, path, os.O_RDONLY, func(_ context.Context, file *os.File) ([]byte, error) {
		return readAt(file, extSuperblock, extSuperblockSize)
	})
	if err != nil {
		return err
	}
	if err := keeper.Keep(ctx, name, pack(super)); err != nil {
		return fmt.Errorf("keeping the superblock of %q: %w", path, err)
	}
	return nil
}

// part is how many bytes of a superblock are packed as one.
const part = 16

// pack leaves out the parts of a superblock that are zero, and puts its number before each other: an extended attribute has
// room for less than a block, which may not be larger than a superblock. First comes the checksum of all.
func pack(super []byte) []byte {
	packed := binary.LittleEndian.AppendUint32(nil, crc32.ChecksumIEEE(super))
	for i := 0; i+part <= len(super); i += part {
		if one := super[i : i+part]; !bytes.Equal(one, make([]byte, part)) {
			packed = append(append(packed, byte(i/part)), one...)
		}
	}
	return packed
}

// unpack undoes pack. It returns nil for what was not kept whole.
func unpack(packed []byte) []byte {
	if len(packed) < 4 {
		return nil
	}
	sum, super := binary.LittleEndian.Uint32(packed), make([]byte, extSuperblockSize)
	for packed = packed[4:]; len(packed) > part; packed = packed[1+part:] {
		if i := part * int(packed[0]); i < extSuperblockSize {
			copy(super[i:], packed[1:1+part])
		}
	}
	if crc32.ChecksumIEEE(super) != sum {
		return nil
	}
	return super
}

// Directory is a [Keeper] for a filesystem that is on a device, in files NAME.growing and NAME.checking of a directory of the
// caller's, which it makes with mode 0700.
type Directory struct {
	// Dir is the absolute path of the directory. It must survive a reboot.
	Dir string
	// Name says which filesystem it is; one element of a path.
	Name string
}

func (d Directory) path(name string) string { return filepath.Join(d.Dir, d.Name+"."+name) }

// Keep implements [Keeper].
func (d Directory) Keep(_ context.Context, name string, data []byte) error {
	if data == nil {
		err := os.Remove(d.path(name))
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return errors.Join(err, syncPath(d.Dir))
	}
	if err := os.MkdirAll(d.Dir, 0o700); err != nil {
		return err
	}
	file, err := os.OpenFile(d.path(name), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	return errors.Join(err, file.Sync(), file.Close(), syncPath(d.Dir), syncPath(filepath.Dir(d.Dir)))
}

// Kept implements [Keeper].
func (d Directory) Kept(_ context.Context, name string) ([]byte, error) {
	data, err := os.ReadFile(d.path(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return data, err
}

// SetAttribute puts data into an extended attribute of an image, such as "user.x.checking", for a [Keeper]; nil takes it off.
// Where there are no such attributes the error matches mount.ErrUnsupported.
func SetAttribute(file *os.File, name string, data []byte) error {
	if err := setAttribute(file, name, data); err != nil {
		return fmt.Errorf("attribute %s of %q: %w", name, file.Name(), err)
	}
	return nil
}

// Attribute returns what [SetAttribute] has put there; nil: nothing.
func Attribute(file *os.File, name string) ([]byte, error) { return attribute(file, name) }

// syncPath makes what was made or removed in a directory survive a power cut.
func syncPath(dir string) error {
	file, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(file.Sync(), file.Close())
}
