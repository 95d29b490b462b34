package format

import (
	"bytes"
	"context"
	"crypto/sha256"
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
	keptExpansion = "growing"
	keptCheck     = "checking"
	// keptRepair holds no superblock, but says of which one, kept as keptExpansion, the expansion is being repaired. It is never
	// there without that.
	keptRepair = "mending"
)

// Interrupted returns the name under which the keeper keeps something of a check or an expansion, which is under way or was killed.
// The name is empty if there is none: then the filesystem is whole as far as these two go, and so is a copy of it.
func Interrupted(ctx context.Context, keeper Keeper) (name string, err error) {
	for _, name := range []string{keptExpansion, keptCheck, keptRepair} {
		data, err := keeper.Kept(ctx, name)
		if err != nil || data != nil {
			return name, err
		}
	}
	return "", nil
}

// CheckKept is [Check] that may be killed at any moment, as by an agent that is: the next CheckKept goes on. It keeps the
// superblock of an ext2, ext3 or ext4 meanwhile, and puts it back where it finds it broken then, if the filesystem is the same
// one and was not mounted since. A superblock that is broken for another reason is left alone.
//
// A filesystem on which [GrowKept] was broken off after resize2fs had begun is repaired by all that e2fsck proposes
// (e2fsck -f -y). That loses nothing, since the expansion moves no blocks and the filesystem was whole before. The proof is the
// superblock that GrowKept has kept: the filesystem is the same, was not mounted since, and now has the mark of resize2fs in
// its superblock, or a broken one. Before e2fsck begins, which takes the mark off before it has written all the rest, CheckKept
// keeps that it repairs this expansion: however often it is killed, the next CheckKept goes on, until e2fsck has ended with success.
// Without the proof the filesystem is checked as any other: what is not safe to repair is [ErrDamaged].
func CheckKept(ctx context.Context, path, fsType string, keeper Keeper) (CheckResult, error) {
	if !isExt(fsType) {
		return Check(ctx, path, fsType)
	}
	growing, err := keeper.Kept(ctx, keptExpansion)
	if err != nil {
		return CheckResult{}, err
	}
	if growing == nil {
		return checkKept(ctx, path, preen, keeper)
	}
	before, k := unpack(growing), keeping{keeper}
	mending, err := k.isRepairing(ctx, before)
	if err != nil {
		return CheckResult{}, err
	}
	broken, err := isBrokenOff(ctx, path, before, mending)
	switch {
	case err != nil:
		return CheckResult{}, err
	case broken:
		return repairKept(ctx, path, before, k)
	}
	// The expansion had not begun, or had ended.
	if err := k.remove(ctx); err != nil {
		return CheckResult{}, err
	}
	return checkKept(ctx, path, preenAll, keeper)
}

// The options of e2fsck that repair what is safe to repair: preen trusts a filesystem that says that it is whole, preenAll does not.
const preen, preenAll = "-p", "-fp"

func checkKept(ctx context.Context, path, option string, keeper Keeper) (CheckResult, error) {
	return onPath(ctx, path, os.O_RDWR, func(ctx context.Context, file *os.File) (CheckResult, error) {
		return keeping{keeper}.check(ctx, file, option)
	})
}

// isBrokenOff reports whether an expansion has left what only e2fsck -y repairs. before is the superblock from just before it; nil
// proves nothing. resize2fs marks a filesystem as one with errors before it writes anything else, and takes the mark off at the
// end. e2fsck, once it repairs what is left (mending), takes it off too, or it goes with a superblock that is put back.
func isBrokenOff(ctx context.Context, path string, before []byte, mending bool) (bool, error) {
	return onPath(ctx, path, os.O_RDONLY, func(_ context.Context, file *os.File) (bool, error) {
		now, err := readAt(file, extSuperblock, extSuperblockSize)
		if err != nil || before == nil || extSuperblockIsBroken(before) || hasErrors(before) || !isUntouched(before, now) {
			return false, err
		}
		return mending || extSuperblockIsBroken(now) || hasErrors(now), nil
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

// hasBrokenSuperblock reports whether the superblock of an ext could be read and is none.
func hasBrokenSuperblock(file *os.File) bool {
	super, err := readAt(file, extSuperblock, extSuperblockSize)
	return err == nil && extSuperblockIsBroken(super)
}

func isExt(fsType string) bool { return fsType == "ext2" || fsType == "ext3" || fsType == "ext4" }

// isFull reports whether nothing can be kept for want of space.
func isFull(err error) bool { return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) }

func repairKept(ctx context.Context, path string, before []byte, k keeping) (CheckResult, error) {
	result, err := onPath(ctx, path, os.O_RDWR, func(ctx context.Context, file *os.File) (CheckResult, error) {
		return k.repair(ctx, file, before)
	})
	if err == nil {
		err = k.remove(ctx)
	}
	return result, err
}

// GrowKept is [Grow] of a filesystem that is mounted nowhere. When it is killed, [CheckKept] with the same keeper repairs what it
// leaves. It keeps the superblock from just before resize2fs begins until the filesystem is known to be whole, and nothing when
// the expansion is refused. Where nothing can be kept the error matches mount.ErrUnsupported, and the filesystem does not grow.
//
// When resize2fs fails, as on an image whose own disk is full, GrowKept repairs what it has left in the same way. The error then
// matches [ErrNotGrown], and the filesystem can be mounted.
func GrowKept(ctx context.Context, path string, keeper Keeper) (GrowResult, error) {
	return growPath(ctx, path, os.O_RDWR, func(ctx context.Context, file *os.File) (GrowResult, error) {
		return growUnmounted(ctx, file, keeping{keeper})
	})
}

// keeping is how the next [CheckKept] learns what was under way. The zero value keeps nothing.
type keeping struct{ keeper Keeper }

// check runs e2fsck. It ends a check that was killed, and keeps the superblock for the next.
func (k keeping) check(ctx context.Context, file *os.File, option string) (CheckResult, error) {
	before, err := k.beginCheck(ctx, file)
	if err != nil {
		return CheckResult{}, err
	}
	result, err := checkExt(ctx, file, []string{option})
	switch {
	case err != nil && !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrNoTool): // It may have been broken off.
		return result, err
	case hasBrokenSuperblock(file) && !extSuperblockIsBroken(before): // Of what it could not write e2fsck does not always tell.
		return CheckResult{}, errors.Join(fmt.Errorf("e2fsck has broken the superblock of %q: try again: %w", file.Name(), mount.ErrUncertain), err)
	}
	return result, errors.Join(err, k.endCheck(ctx))
}

// beginCheck puts the superblock back that a check has broken which was killed, and keeps what is there then.
func (k keeping) beginCheck(ctx context.Context, file *os.File) (super []byte, err error) {
	var kept []byte
	if k.keeper != nil {
		kept, err = k.keeper.Kept(ctx, keptCheck)
	}
	if err == nil && kept != nil {
		err = restoreSuperblock(file, unpack(kept))
	}
	if err == nil {
		super, err = readAt(file, extSuperblock, extSuperblockSize)
	}
	if err != nil || k.keeper == nil {
		return super, err
	}
	err = k.keeper.Keep(ctx, keptCheck, pack(super))
	if err != nil && !errors.Is(err, mount.ErrUnsupported) && !isFull(err) {
		return nil, fmt.Errorf("keeping the superblock of %q: %w", file.Name(), err)
	}
	return super, nil // Where nothing is kept a check that is killed takes a person, who is told by the next.
}

// endCheck forgets the superblock, since e2fsck has ended.
func (k keeping) endCheck(ctx context.Context) error {
	if k.keeper == nil {
		return nil
	}
	return k.keeper.Keep(ctx, keptCheck, nil)
}

// set keeps the superblock, before resize2fs begins.
func (k keeping) set(ctx context.Context, path string, super []byte) error {
	if k.keeper == nil {
		return nil
	}
	// What an earlier expansion may have left must not speak for this one.
	err := k.keeper.Keep(ctx, keptRepair, nil)
	if err == nil {
		err = k.keeper.Keep(ctx, keptExpansion, pack(super))
	}
	if isFull(err) {
		err = errors.Join(fmt.Errorf("%w: %w", ErrNotGrown, err), k.keeper.Keep(ctx, keptExpansion, nil))
	}
	if err != nil {
		return fmt.Errorf("keeping the superblock of %q: %w", path, err)
	}
	return nil
}

// remove forgets it, and last of all what the proof of a repair rests on, since the filesystem is whole.
func (k keeping) remove(ctx context.Context) error {
	if k.keeper == nil {
		return nil
	}
	if err := k.keeper.Keep(ctx, keptRepair, nil); err != nil {
		return err
	}
	return k.keeper.Keep(ctx, keptExpansion, nil)
}

// repair repairs an ext on which an expansion was broken off, by all that e2fsck proposes. before is the superblock from just before
// it. That it has begun is kept first, and until remove.
func (k keeping) repair(ctx context.Context, file *os.File, before []byte) (CheckResult, error) {
	if err := k.beginRepair(ctx, before); err != nil {
		return CheckResult{}, fmt.Errorf("keeping that %q is repaired: %w", file.Name(), err)
	}
	if err := restoreSuperblock(file, before); err != nil {
		return CheckResult{}, err
	}
	result, err := checkExt(ctx, file, []string{"-f", "-y"})
	if err != nil {
		return CheckResult{}, err
	}
	// Of some of what it could not write e2fsck does not tell.
	if _, err := checkExt(ctx, file, []string{"-f", "-n"}); err != nil {
		return CheckResult{}, fmt.Errorf("after e2fsck -y: %w: %w", mount.ErrUncertain, err)
	}
	return result, nil
}

// beginRepair keeps that repair has begun. What says so already is not written again, since half of it would say nothing.
func (k keeping) beginRepair(ctx context.Context, before []byte) error {
	begun, err := k.isRepairing(ctx, before)
	if err != nil || begun {
		return err
	}
	err = k.keeper.Keep(ctx, keptRepair, sumOf(before))
	if isFull(err) {
		return nil // A repair that is killed takes a person then.
	}
	return err
}

// isRepairing reports whether repair has begun with the expansion before which the superblock was kept.
func (k keeping) isRepairing(ctx context.Context, before []byte) (bool, error) {
	kept, err := k.keeper.Kept(ctx, keptRepair)
	return err == nil && before != nil && bytes.Equal(kept, sumOf(before)), err
}

// sumOf stands for a superblock. It is short, so that there is room for it beside what is kept already.
func sumOf(super []byte) []byte {
	sum := sha256.Sum256(super)
	return sum[:]
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

// Directory is a [Keeper] for a filesystem that is on a device, in files NAME.growing, NAME.mending and NAME.checking of a
// directory of the caller's, which it makes with mode 0700.
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
