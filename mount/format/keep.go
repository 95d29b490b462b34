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
	"syscall"

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
// one and was not mounted since. A superblock that is broken for another reason is left alone.
//
// A filesystem on which [GrowKept] was broken off after resize2fs had begun is repaired by all that e2fsck proposes
// (e2fsck -f -y). That loses nothing, since the growth moves no blocks and the filesystem was whole before. The proof is the
// superblock that GrowKept has kept: the filesystem is the same, was not mounted since, and now has the mark of resize2fs in
// its superblock, or a broken one. Without the proof it is checked as any other: what is not safe to repair is [ErrDamaged].
func CheckKept(ctx context.Context, path, fsType string, keeper Keeper) (CheckResult, error) {
	if !isExt(fsType) {
		return Check(ctx, path, fsType)
	}
	growing, err := keeper.Kept(ctx, keptGrowing)
	if err != nil {
		return CheckResult{}, err
	}
	if growing == nil {
		return checkKept(ctx, path, preen, keeper)
	}
	began, err := growthBegan(ctx, path, unpack(growing))
	switch {
	case err != nil:
		return CheckResult{}, err
	case began:
		return mendKept(ctx, path, growing, keeper)
	}
	// The growth had not begun, or had ended.
	if err := keeper.Keep(ctx, keptGrowing, nil); err != nil {
		return CheckResult{}, err
	}
	return checkKept(ctx, path, preenAll, keeper)
}

// The options of e2fsck that repair what is safe to repair: preen trusts a filesystem that says that it is whole, preenAll does not.
const preen, preenAll = "-p", "-fp"

func checkKept(ctx context.Context, path, option string, keeper Keeper) (CheckResult, error) {
	if err := beginCheck(ctx, path, keeper); err != nil {
		return CheckResult{}, err
	}
	result, err := onPath(ctx, path, os.O_RDWR, func(ctx context.Context, file *os.File) (CheckResult, error) {
		return checkExt(ctx, file, []string{option})
	})
	if err != nil && !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrNoTool) {
		return result, err // It may have been broken off.
	}
	return result, errors.Join(err, keeper.Keep(ctx, keptChecking, nil))
}

// growthBegan reports whether resize2fs had begun to write when its growth was broken off. It marks a filesystem as one with
// errors before it writes anything else, and takes the mark off at the end. kept is the superblock from before; nil proves
// nothing.
func growthBegan(ctx context.Context, path string, kept []byte) (bool, error) {
	return onPath(ctx, path, os.O_RDONLY, func(_ context.Context, file *os.File) (bool, error) {
		now, err := readAt(file, extSuperblock, extSuperblockSize)
		if err != nil || kept == nil || extSuperblockIsBroken(kept) || hasErrors(kept) || !isUntouched(kept, now) {
			return false, err
		}
		return extSuperblockIsBroken(now) || hasErrors(now), nil
	})
}

// isUntouched reports whether two superblocks are of one filesystem that was not mounted in between.
func isUntouched(earlier, now []byte) bool {
	same := func(offset, length int) bool {
		return bytes.Equal(now[offset:offset+length], earlier[offset:offset+length])
	}
	return same(extMounted, 4) && same(extIdentity, 16)
}

// hasErrors reports whether a superblock says that its filesystem has errors.
func hasErrors(super []byte) bool {
	return binary.LittleEndian.Uint16(super[extState:])&extErrors != 0
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
	if errors.Is(err, mount.ErrUnsupported) || isFull(err) {
		return nil // A check that is killed takes a person then, who is told by the next.
	}
	return err
}

// isFull reports whether nothing can be kept for want of space.
func isFull(err error) bool { return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) }

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
// leaves. It keeps the superblock from just before resize2fs begins until the filesystem is known to be whole, and nothing when
// the growth is refused. Where nothing can be kept the error matches mount.ErrUnsupported, and the filesystem does not grow.
//
// When resize2fs fails, as on an image whose own disk is full, GrowKept repairs what it has left in the same way. The error then
// matches [ErrNotGrown], and the filesystem can be mounted.
func GrowKept(ctx context.Context, path string, keeper Keeper) (GrowResult, error) {
	return growPath(ctx, path, os.O_RDWR, func(ctx context.Context, file *os.File) (GrowResult, error) {
		return growUnmounted(ctx, file, growthMark{keeper})
	})
}

// growthMark is what proves to the next [CheckKept] that resize2fs had begun. The zero value marks nothing.
type growthMark struct{ keeper Keeper }

// beginCheck keeps the superblock while e2fsck runs, as beginCheck of a check alone does.
func (m growthMark) beginCheck(ctx context.Context, super []byte) error {
	if m.keeper == nil {
		return nil
	}
	err := m.keeper.Keep(ctx, keptChecking, pack(super))
	if errors.Is(err, mount.ErrUnsupported) || isFull(err) {
		return nil // See there.
	}
	return err
}

// endCheck forgets it, since e2fsck has ended.
func (m growthMark) endCheck(ctx context.Context) error {
	if m.keeper == nil {
		return nil
	}
	return m.keeper.Keep(ctx, keptChecking, nil)
}

// set keeps the superblock, before resize2fs begins.
func (m growthMark) set(ctx context.Context, path string, super []byte) error {
	if m.keeper == nil {
		return nil
	}
	err := m.keeper.Keep(ctx, keptGrowing, pack(super))
	if isFull(err) {
		err = errors.Join(fmt.Errorf("%w: %w", ErrNotGrown, err), m.keeper.Keep(ctx, keptGrowing, nil))
	}
	if err != nil {
		return fmt.Errorf("keeping the superblock of %q: %w", path, err)
	}
	return nil
}

// remove forgets it, since the filesystem is whole.
func (m growthMark) remove(ctx context.Context) error {
	if m.keeper == nil {
		return nil
	}
	return m.keeper.Keep(ctx, keptGrowing, nil)
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
