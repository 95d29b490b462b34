package format

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/descriptor"
	"github.com/volumekit/volumekit/mount"
)

func openMedium(path string, flags int) (*os.File, error) {
	file, err := os.OpenFile(path, flags|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if _, err := checkMedium(file); err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

func canMake(fsType string) error {
	m, err := makerOf(fsType)
	if err != nil {
		return err
	}
	_, err = findTool(toolDirs(), "mkfs."+fsType, m.pkg)
	return err
}

// making is one call of Make or MakeFile.
type making struct {
	maker
	options MakeOptions
}

func makeFilesystem(ctx context.Context, file *os.File, options MakeOptions) error {
	if err := canMake(options.FSType); err != nil {
		return err
	}
	m := making{options: options}
	var err error
	if m.maker, err = makerOf(options.FSType); err != nil {
		return err
	}
	info, err := checkMedium(file)
	if err != nil {
		return err
	}
	if info.Mode().IsRegular() {
		return m.inFile(ctx, file)
	}
	return m.onDevice(ctx, file)
}

// inFile makes the filesystem in a regular file, which no other program uses.
func (m making) inFile(ctx context.Context, file *os.File) error {
	proven, err := m.prove(ctx, file)
	if err != nil {
		return err
	}
	whole, err := isAllocated(file)
	if err != nil {
		return err
	}
	if err := checkSize(file, proven); err != nil {
		return err
	}
	if err := m.runTool(ctx, file); err != nil {
		return err
	}
	if whole {
		if err := allocateAgain(file); err != nil {
			return err
		}
	}
	return verifyMade(ctx, file, m.options.FSType)
}

// prove proves that the medium is blank and large enough, and returns its size.
func (m making) prove(ctx context.Context, file *os.File) (int64, error) {
	size, err := proveBlank(ctx, file)
	if least := SizesOf(m.options.FSType).Least; err == nil && size < least {
		err = &TooSmallError{Path: file.Name(), Size: size, Least: least}
	}
	return size, err
}

func (m making) runTool(ctx context.Context, file *os.File) error {
	args := slices.Clone(m.args)
	if m.options.Label != "" {
		args = append(args, m.label, m.options.Label)
	}
	return run(ctx, "mkfs."+m.options.FSType, m.pkg, args, file)
}

// checkSize checks that the medium still has the size that was proven to be blank.
func checkSize(file *os.File, proven int64) error {
	size, err := sizeOf(file)
	if err == nil && size != proven {
		err = fmt.Errorf("%q had %d bytes when it was proven to be blank, and has %d: try again: %w",
			file.Name(), proven, size, unix.EAGAIN)
	}
	return err
}

// isAllocated reports whether file is a regular file without a hole.
func isAllocated(file *os.File) (bool, error) {
	st, err := fstat(file)
	return err == nil && st.Mode&unix.S_IFMT == unix.S_IFREG && st.Blocks*512 >= st.Size, err
}

// allocateAgain allocates the space that a tool has freed. mkfs.ext4 writes zeros by punching holes if the filesystem below
// has no other way (a tmpfs).
func allocateAgain(file *os.File) error {
	whole, err := isAllocated(file)
	if err != nil || whole {
		return err
	}
	st, err := fstat(file)
	if err != nil {
		return err
	}
	err = descriptor.Call(file, func(fd int) error { return unix.Fallocate(fd, 0, 0, st.Size) })
	if err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("allocating %q again: %w: %w", file.Name(), mount.ErrUncertain, err)
	}
	return nil
}

func fstat(file *os.File) (unix.Stat_t, error) {
	var st unix.Stat_t
	err := descriptor.Call(file, func(fd int) error { return unix.Fstat(fd, &st) })
	return st, err
}

// verifyMade checks that the medium has the filesystem, because the success of a tool proves nothing.
func verifyMade(ctx context.Context, file *os.File, fsType string) error {
	found, err := probe(ctx, file)
	if err != nil {
		return fmt.Errorf("after mkfs.%s on %q: %w", fsType, file.Name(), err)
	}
	if found.Type != fsType {
		return fmt.Errorf("mkfs.%s on %q succeeded and made %s: %w", fsType, file.Name(), found, ErrUnknownType)
	}
	return nil
}

// Exit codes of e2fsck(8).
const (
	fsckRepaired = 1
	fsckReboot   = 2
	fsckErrors   = 4
	fsckFailed   = 8
)

func check(ctx context.Context, file *os.File, fsType string) (CheckResult, error) {
	switch fsType {
	case "ext2", "ext3", "ext4":
		return checkExt(ctx, file, []string{preen})
	case "xfs", "btrfs":
		return CheckResult{}, nil
	}
	return CheckResult{}, fmt.Errorf("check of filesystem %q: %w", fsType, ErrUnknownType)
}

// restoreSuperblock replaces a broken superblock by an earlier one. Both must be of one filesystem that was not mounted in
// between, because the earlier one lacks what a mount has written.
func restoreSuperblock(file *os.File, earlier []byte) error {
	now, err := readAt(file, extSuperblock, extSuperblockSize)
	if err != nil || earlier == nil || !extSuperblockIsBroken(now) || extSuperblockIsBroken(earlier) {
		return err
	}
	if !isUntouched(earlier, now) {
		return nil
	}
	if _, err := file.WriteAt(earlier, extSuperblock); err != nil {
		return err
	}
	return file.Sync()
}

// checkExt runs e2fsck without questions.
func checkExt(ctx context.Context, file *os.File, options []string) (CheckResult, error) {
	found := errorsOnRecord(file)
	if found > 0 && slices.Equal(options, []string{preen}) {
		options = []string{preenAll} // Trusting a clean state would keep the recorded errors.
	}
	err := run(ctx, "e2fsck", "e2fsprogs", options, file)
	if err == nil {
		return CheckResult{Checked: true, Errors: found}, nil
	}
	var tool *ToolError
	if !errors.As(err, &tool) {
		return CheckResult{}, err
	}
	switch {
	case tool.ExitCode > 0 && tool.ExitCode&^(fsckRepaired|fsckReboot) == 0:
		return CheckResult{Checked: true, Repaired: true, Errors: found}, nil
	case tool.ExitCode > 0 && tool.ExitCode&^(fsckRepaired|fsckReboot|fsckErrors) == 0:
		return CheckResult{}, fmt.Errorf("%w: run e2fsck by hand: %w", ErrDamaged, err)
	case tool.ExitCode == fsckFailed && hasBrokenSuperblock(file): // e2fsck also exits so without memory, or if the device fails.
		return CheckResult{}, fmt.Errorf("%w: its superblock is broken: run e2fsck -b 32768 by hand, or -b 8193 where blocks have 1 KiB, which uses a copy: %w", ErrDamaged, err)
	}
	return CheckResult{}, err
}

// errorsOnRecord returns how many errors the kernel has recorded in an ext. It returns 0 for a broken superblock, which
// e2fsck reports.
func errorsOnRecord(file *os.File) int {
	super, err := readAt(file, extSuperblock, extSuperblockSize)
	if err != nil || extSuperblockIsBroken(super) {
		return 0
	}
	return int(binary.LittleEndian.Uint32(super[extErrorCount:]))
}
