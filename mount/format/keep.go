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

// Keeper stores a few bytes beside a filesystem, each under a name. They survive a kill and a power cut. [Directory] is one; another
// can use [SetAttribute] on an image.
type Keeper interface {
	// Keep stores less than 2 KiB, and replaces what was stored under the name; nil removes it. It may be killed midway: half a
	// value is not used. If nothing can be stored, the error matches mount.ErrUnsupported.
	Keep(ctx context.Context, name string, data []byte) error
	// Kept returns the bytes under the name; nil if there are none.
	Kept(ctx context.Context, name string) ([]byte, error)
}

// The names under which superblocks are stored. e2fsck and resize2fs write the superblock in parts: if one is killed in between, the
// device has none.
const (
	keptExpansion = "growing"
	keptCheck     = "checking"
	// keptRepair holds the checksum of the superblock under keptExpansion whose expansion is being repaired. It never exists without
	// that superblock.
	keptRepair = "mending"
)

// Interrupted returns the name under which the keeper has a superblock: a check or an expansion is running or was killed. The name
// is empty if there is none. Then neither has left the filesystem, or a copy of it, damaged.
func Interrupted(ctx context.Context, keeper Keeper) (name string, err error) {
	for _, name := range []string{keptExpansion, keptCheck, keptRepair} {
		data, err := keeper.Kept(ctx, name)
		if err != nil || data != nil {
			return name, err
		}
	}
	return "", nil
}

// CheckKept is [Check], but may be killed at any moment: the next CheckKept continues. It stores the superblock of an ext2, ext3 or
// ext4 meanwhile. If the next call finds a broken superblock, it restores the stored one, provided that the filesystem is the same
// and was not mounted since. A superblock that is broken for another reason is left alone.
//
// A filesystem on which [GrowKept] was broken off after resize2fs had begun is repaired by all that e2fsck proposes
// (e2fsck -f -y). That loses nothing, since the expansion moves no blocks and the filesystem was whole before. The proof is the
// superblock that GrowKept has kept: the filesystem is the same, was not mounted since, and now has the mark of resize2fs in
// its superblock, or a broken one. e2fsck clears the mark before it has written all the rest. So CheckKept first records that it
// repairs this expansion: however often it is killed, the next CheckKept continues, until e2fsck has succeeded. Without the proof
// the filesystem is checked as any other: an error that is not safe to repair is [ErrDamaged].
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

// isFull reports whether err is about a full disk or quota.
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

// keeping records checks and expansions for the next [CheckKept]. The zero value records nothing.
type keeping struct{ keeper Keeper }

// check runs e2fsck. It completes a check that was killed, and stores the superblock for the next call.
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

// beginCheck restores a superblock that a killed check has broken. Then it stores the present one.
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
	return super, nil // Nothing is stored: if the check is killed, the next one reports damage that a person must repair.
}

// endCheck removes the stored superblock after e2fsck has ended.
func (k keeping) endCheck(ctx context.Context) error {
	if k.keeper == nil {
		return nil
	}
	return k.keeper.Keep(ctx, keptCheck, nil)
}

// set stores the superblock before resize2fs begins.
func (k keeping) set(ctx context.Context, path string, super []byte) error {
	if k.keeper == nil {
		return nil
	}
	// The record of an earlier expansion must not count for this one.
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

// remove removes the records of a filesystem that is whole. The superblock, which proves that a repair is safe, goes last.
func (k keeping) remove(ctx context.Context) error {
	if k.keeper == nil {
		return nil
	}
	if err := k.keeper.Keep(ctx, keptRepair, nil); err != nil {
		return err
	}
	return k.keeper.Keep(ctx, keptExpansion, nil)
}

// repair repairs an ext whose expansion was interrupted, by all that e2fsck proposes. before is the superblock from just before the
// expansion. repair first records that it has begun; remove removes that record.
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
	// e2fsck does not report all failed writes.
	if _, err := checkExt(ctx, file, []string{"-f", "-n"}); err != nil {
		return CheckResult{}, fmt.Errorf("after e2fsck -y: %w: %w", mount.ErrUncertain, err)
	}
	return result, nil
}

// beginRepair records that a repair has begun. It does not replace an equal record: a kill midway would leave half of it.
func (k keeping) beginRepair(ctx context.Context, before []byte) error {
	begun, err := k.isRepairing(ctx, before)
	if err != nil || begun {
		return err
	}
	err = k.keeper.Keep(ctx, keptRepair, sumOf(before))
	if isFull(err) {
		return nil // If this repair is killed, a person must repair the filesystem.
	}
	return err
}

// isRepairing reports whether a repair has begun of the expansion with that superblock.
func (k keeping) isRepairing(ctx context.Context, before []byte) (bool, error) {
	kept, err := k.keeper.Kept(ctx, keptRepair)
	return err == nil && before != nil && bytes.Equal(kept, sumOf(before)), err
}

// sumOf returns a checksum of a superblock. It is short: both records must fit into an inode's extended attributes.
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

// unpack undoes pack. It returns nil for bytes that are not whole.
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

// Attribute returns the data that [SetAttribute] has stored; nil if there is none.
func Attribute(file *os.File, name string) ([]byte, error) { return attribute(file, name) }

// syncPath syncs a directory: files made or removed in it survive a power cut.
func syncPath(dir string) error {
	file, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(file.Sync(), file.Close())
}
