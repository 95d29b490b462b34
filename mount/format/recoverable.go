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

// RecoveryStore stores a few bytes beside a filesystem, under names. They survive a kill and a power cut. [Directory] is one. For
// an image, another one can use [SetAttribute].
type RecoveryStore interface {
	// Save stores less than 2 KiB, and replaces what was stored under the name; nil removes it. It may be killed midway: half a
	// value is not used. If nothing can be stored, the error matches mount.ErrUnsupported.
	Save(ctx context.Context, name string, data []byte) error
	// Load returns the bytes under the name; nil if there are none.
	Load(ctx context.Context, name string) ([]byte, error)
}

// The names under which superblocks are stored. e2fsck and resize2fs write the superblock in parts: if one is killed in between, the
// device has none.
const (
	savedExpansion = "growing"
	savedCheck     = "checking"
	// savedRepair holds the checksum of the superblock under savedExpansion whose expansion is being repaired. It never exists without
	// that superblock.
	savedRepair = "mending"
)

// Interrupted returns the name under which the store has data: a check or an expansion is running or was killed. The name
// is empty if there is none. Then neither has left the filesystem, or a copy of it, damaged.
func Interrupted(ctx context.Context, store RecoveryStore) (name string, err error) {
	for _, name := range []string{savedExpansion, savedCheck, savedRepair} {
		data, err := store.Load(ctx, name)
		if err != nil || data != nil {
			return name, err
		}
	}
	return "", nil
}

// CheckRecoverable is [Check], but may be killed at any moment: the next CheckRecoverable continues. It saves the superblock of an
// ext2, ext3 or ext4 meanwhile. If the next call finds a broken superblock, it restores the saved one, provided that the filesystem
// is the same and was not mounted since. It leaves a superblock alone that is broken for another reason.
//
// If [GrowRecoverable] was interrupted after resize2fs had begun, CheckRecoverable makes all repairs that e2fsck proposes
// (e2fsck -f -y). That loses nothing: the expansion moves no blocks, and the filesystem was whole before. The proof is the
// superblock that GrowRecoverable has saved: the filesystem is the same, was not mounted since, and now has the mark of resize2fs in
// its superblock, or a broken one. e2fsck clears the mark before it has written all the rest. So CheckRecoverable first records
// that it repairs this expansion. However often it is killed, the next CheckRecoverable continues until e2fsck has succeeded.
// Without the proof, it checks the filesystem like any other: an error that is not safe to repair is [ErrDamaged].
func CheckRecoverable(ctx context.Context, path, fsType string, store RecoveryStore) (CheckResult, error) {
	if !isExt(fsType) {
		return Check(ctx, path, fsType)
	}
	growing, err := store.Load(ctx, savedExpansion)
	if err != nil {
		return CheckResult{}, err
	}
	if growing == nil {
		return checkRecoverable(ctx, path, preen, store)
	}
	before, r := unpack(growing), recovery{store}
	mending, err := r.isRepairing(ctx, before)
	if err != nil {
		return CheckResult{}, err
	}
	broken, err := isBrokenOff(ctx, path, before, mending)
	switch {
	case err != nil:
		return CheckResult{}, err
	case broken:
		return repairExpansion(ctx, path, before, r)
	}
	// The expansion had not begun, or had ended.
	if err := r.remove(ctx); err != nil {
		return CheckResult{}, err
	}
	return checkRecoverable(ctx, path, preenAll, store)
}

// The options of e2fsck that repair what is safe to repair: preen trusts a filesystem that says that it is whole, preenAll does not.
const preen, preenAll = "-p", "-fp"

func checkRecoverable(ctx context.Context, path, option string, store RecoveryStore) (CheckResult, error) {
	return onPath(ctx, path, os.O_RDWR, func(ctx context.Context, file *os.File) (CheckResult, error) {
		return recovery{store}.check(ctx, file, option)
	})
}

// isBrokenOff reports whether an interrupted expansion has left damage that only e2fsck -y repairs. before is the superblock from
// just before the expansion; nil proves nothing. resize2fs marks the filesystem as one with errors before it writes anything else,
// and clears the mark at the end. A repair that has begun (mending) may have cleared the mark too: e2fsck clears it, and the restored
// superblock does not have it.
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

// hasBrokenSuperblock reports whether the superblock of an ext filesystem could be read and is not valid.
func hasBrokenSuperblock(file *os.File) bool {
	super, err := readAt(file, extSuperblock, extSuperblockSize)
	return err == nil && extSuperblockIsBroken(super)
}

func isExt(fsType string) bool { return fsType == "ext2" || fsType == "ext3" || fsType == "ext4" }

// isFull reports whether err is about a full disk or quota.
func isFull(err error) bool { return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) }

func repairExpansion(ctx context.Context, path string, before []byte, r recovery) (CheckResult, error) {
	result, err := onPath(ctx, path, os.O_RDWR, func(ctx context.Context, file *os.File) (CheckResult, error) {
		return r.repair(ctx, file, before)
	})
	if err == nil {
		err = r.remove(ctx)
	}
	return result, err
}

// GrowRecoverable is [Grow] of a filesystem that is mounted nowhere. If it is killed, [CheckRecoverable] with the same store repairs
// the filesystem. It saves the superblock just before resize2fs begins, and removes it when the filesystem is known to be whole. If
// it refuses the expansion, nothing stays saved. If the store cannot save anything, the error matches mount.ErrUnsupported, and the
// filesystem does not grow.
//
// If resize2fs fails, for example because the disk of an image is full, GrowRecoverable repairs the filesystem in the same way. The
// error then matches [ErrNotGrown], and the filesystem can be mounted.
func GrowRecoverable(ctx context.Context, path string, store RecoveryStore) (GrowResult, error) {
	return growPath(ctx, path, os.O_RDWR, func(ctx context.Context, file *os.File) (GrowResult, error) {
		return growUnmounted(ctx, file, recovery{store})
	})
}

// recovery records checks and expansions for the next [CheckRecoverable]. The zero value records nothing.
type recovery struct{ store RecoveryStore }

// check runs e2fsck. It completes a check that was killed, and stores the superblock for the next call.
func (r recovery) check(ctx context.Context, file *os.File, option string) (CheckResult, error) {
	before, err := r.beginCheck(ctx, file)
	if err != nil {
		return CheckResult{}, err
	}
	result, err := checkExt(ctx, file, []string{option})
	switch {
	case err != nil && !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrNoTool): // e2fsck may have been interrupted.
		return result, err
	case hasBrokenSuperblock(file) && !extSuperblockIsBroken(before): // e2fsck does not report all failed writes.
		return CheckResult{}, errors.Join(fmt.Errorf("e2fsck has broken the superblock of %q: try again: %w", file.Name(), mount.ErrUncertain), err)
	}
	return result, errors.Join(err, r.endCheck(ctx))
}

// beginCheck restores a superblock that a killed check has broken. Then it stores the present one.
func (r recovery) beginCheck(ctx context.Context, file *os.File) (super []byte, err error) {
	var kept []byte
	if r.store != nil {
		kept, err = r.store.Load(ctx, savedCheck)
	}
	if err == nil && kept != nil {
		err = restoreSuperblock(file, unpack(kept))
	}
	if err == nil {
		super, err = readAt(file, extSuperblock, extSuperblockSize)
	}
	if err != nil || r.store == nil {
		return super, err
	}
	err = r.store.Save(ctx, savedCheck, pack(super))
	if err != nil && !errors.Is(err, mount.ErrUnsupported) && !isFull(err) {
		return nil, fmt.Errorf("saving the superblock of %q: %w", file.Name(), err)
	}
	return super, nil // Nothing is stored: if the check is killed, the next one reports damage that a person must repair.
}

// endCheck removes the stored superblock after e2fsck has ended.
func (r recovery) endCheck(ctx context.Context) error {
	if r.store == nil {
		return nil
	}
	return r.store.Save(ctx, savedCheck, nil)
}

// set stores the superblock before resize2fs begins.
func (r recovery) set(ctx context.Context, path string, super []byte) error {
	if r.store == nil {
		return nil
	}
	// The record of an earlier expansion must not count for this one.
	err := r.store.Save(ctx, savedRepair, nil)
	if err == nil {
		err = r.store.Save(ctx, savedExpansion, pack(super))
	}
	if isFull(err) {
		err = errors.Join(fmt.Errorf("%w: %w", ErrNotGrown, err), r.store.Save(ctx, savedExpansion, nil))
	}
	if err != nil {
		return fmt.Errorf("saving the superblock of %q: %w", path, err)
	}
	return nil
}

// remove removes the records of a filesystem that is whole. The superblock, which proves that a repair is safe, goes last.
func (r recovery) remove(ctx context.Context) error {
	if r.store == nil {
		return nil
	}
	if err := r.store.Save(ctx, savedRepair, nil); err != nil {
		return err
	}
	return r.store.Save(ctx, savedExpansion, nil)
}

// repair repairs an ext whose expansion was interrupted, by all that e2fsck proposes. before is the superblock from just before the
// expansion. repair first records that it has begun; remove removes that record.
func (r recovery) repair(ctx context.Context, file *os.File, before []byte) (CheckResult, error) {
	if err := r.beginRepair(ctx, before); err != nil {
		return CheckResult{}, fmt.Errorf("recording that %q is repaired: %w", file.Name(), err)
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
func (r recovery) beginRepair(ctx context.Context, before []byte) error {
	begun, err := r.isRepairing(ctx, before)
	if err != nil || begun {
		return err
	}
	err = r.store.Save(ctx, savedRepair, sumOf(before))
	if isFull(err) {
		return nil // If this repair is killed, a person must repair the filesystem.
	}
	return err
}

// isRepairing reports whether a repair has begun of the expansion with that superblock.
func (r recovery) isRepairing(ctx context.Context, before []byte) (bool, error) {
	kept, err := r.store.Load(ctx, savedRepair)
	return err == nil && before != nil && bytes.Equal(kept, sumOf(before)), err
}

// sumOf returns a checksum of a superblock. It is short: both records must fit into an inode's extended attributes.
func sumOf(super []byte) []byte {
	sum := sha256.Sum256(super)
	return sum[:]
}

// part is the number of bytes of a superblock that pack handles as one.
const part = 16

// pack returns the checksum of a superblock, and then each part that is not all zeros, with its number before it. A whole superblock
// may not fit into an extended attribute, which has less room than a block: the smallest block is as large as a superblock.
func pack(super []byte) []byte {
	packed := binary.LittleEndian.AppendUint32(nil, crc32.ChecksumIEEE(super))
	for i := 0; i+part <= len(super); i += part {
		if one := super[i : i+part]; !bytes.Equal(one, make([]byte, part)) {
			packed = append(append(packed, byte(i/part)), one...)
		}
	}
	return packed
}

// unpack undoes pack. It returns nil if the checksum does not match.
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

// Directory is a [RecoveryStore] for a filesystem on a device. It has files NAME.growing, NAME.mending and NAME.checking in a
// directory, which it creates with mode 0700.
type Directory struct {
	// Dir is the absolute path of the directory. It must survive a reboot.
	Dir string
	// Name identifies the filesystem; it is one element of a path.
	Name string
}

func (d Directory) path(name string) string { return filepath.Join(d.Dir, d.Name+"."+name) }

// Save implements [RecoveryStore].
func (d Directory) Save(_ context.Context, name string, data []byte) error {
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

// Load implements [RecoveryStore].
func (d Directory) Load(_ context.Context, name string) ([]byte, error) {
	data, err := os.ReadFile(d.path(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return data, err
}

// SetAttribute stores data in an extended attribute of an image, such as "user.x.checking", for a [RecoveryStore]. Nil removes the
// attribute. If the filesystem has no such attributes, the error matches mount.ErrUnsupported.
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
