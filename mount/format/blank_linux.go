package format

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/abandonable"
	"github.com/volumekit/volumekit/internal/descriptor"
)

// chunk is how many bytes are read at once.
const chunk = int64(1) << 20

// proveBlank proves that a medium is blank and returns its size. It refuses a medium that is too small for any filesystem,
// because a device that is not ready may have the size 0.
func proveBlank(ctx context.Context, file *os.File) (int64, error) {
	abandonable.Note(ctx, "read")
	info, err := checkMedium(file)
	if err != nil {
		return 0, err
	}
	if !info.Mode().IsRegular() {
		if err := dropCached(file); err != nil {
			return 0, err
		}
	}
	size, err := sizeOf(file)
	if err != nil {
		return 0, err
	}
	if size < leastOfAll {
		return 0, &TooSmallError{Path: file.Name(), Size: size, Least: leastOfAll}
	}
	if info.Mode().IsRegular() {
		return size, proveFile(ctx, file, size)
	}
	return size, proveSpans(ctx, file, superblockSpans(size))
}

func sizeOf(file *os.File) (int64, error) {
	size, err := file.Seek(0, io.SeekEnd)
	if err != nil {
		return 0, fmt.Errorf("cannot find out the size of %q: %w", file.Name(), err)
	}
	return size, nil
}

// dropCached drops the kernel's cached pages of a device, so the next read reaches the device itself: another machine that
// shares it may have written to it.
func dropCached(file *os.File) error {
	err := descriptor.Call(file, func(fd int) error { return unix.Fadvise(fd, 0, 0, unix.FADV_DONTNEED) })
	if err != nil {
		return fmt.Errorf("posix_fadvise of %q: %w", file.Name(), err)
	}
	return nil
}

// proveFile proves that a file is blank. It reads every byte that can be other than zero, and skips holes.
func proveFile(ctx context.Context, file *os.File, size int64) error {
	for offset := int64(0); offset < size; {
		s, err := nextData(file, offset, size)
		if errors.Is(err, unix.ENXIO) {
			return nil // no data from here to the end
		}
		if err != nil {
			return fmt.Errorf("cannot tell where %q has data: %w", file.Name(), err)
		}
		if err := proveSpan(ctx, file, s); err != nil {
			return err
		}
		offset = s.end
	}
	return nil
}

// nextData returns the next part of the file that is not a hole, at or after offset. On a filesystem without holes, that is
// the whole rest.
func nextData(file *os.File, offset, size int64) (span, error) {
	start, err := file.Seek(offset, unix.SEEK_DATA)
	if errors.Is(err, unix.EINVAL) {
		return span{offset, size}, nil
	}
	if err != nil {
		return span{}, err
	}
	end, err := file.Seek(start, unix.SEEK_HOLE)
	if err != nil {
		return span{}, err
	}
	if end <= start {
		return span{}, fmt.Errorf("data at %d ends at %d: %w", start, end, unix.EAGAIN)
	}
	return span{start, end}, nil
}

func proveSpans(ctx context.Context, file *os.File, spans []span) error {
	for _, s := range spans {
		if err := proveSpan(ctx, file, s); err != nil {
			return err
		}
	}
	return nil
}

func proveSpan(ctx context.Context, file *os.File, s span) error {
	buffer := make([]byte, min(chunk, s.end-s.start))
	for offset := s.start; offset < s.end; {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("proving that %q is blank: %w", file.Name(), context.Cause(ctx))
		}
		part := buffer[:min(int64(len(buffer)), s.end-offset)]
		if _, err := io.ReadFull(io.NewSectionReader(file, offset, int64(len(part))), part); err != nil {
			return fmt.Errorf("cannot read %q at byte %d, so that it does not count as blank: %w", file.Name(), offset, err)
		}
		if i := firstNonZero(part); i >= 0 {
			return notBlank(ctx, file, offset+int64(i))
		}
		offset += int64(len(part))
	}
	return nil
}

// notBlank returns the error for the byte at offset, with what the start of the medium, or that place, shows about its
// content.
func notBlank(ctx context.Context, file *os.File, offset int64) error {
	found, err := probe(ctx, file)
	if err != nil {
		return err
	}
	if found.Type == "" {
		found = recogniseBackup(file, offset)
	}
	return &NotBlankError{Path: file.Name(), Offset: offset, Signature: found}
}

// recogniseBackup looks for a backup superblock of ext around the first byte that is not zero. Such a superblock starts
// with the number of inodes, and so within the same 1024 bytes.
func recogniseBackup(file *os.File, offset int64) Signature {
	superblock := make([]byte, 1024)
	block := offset &^ (1024 - 1)
	if _, err := file.ReadAt(superblock, block); err != nil {
		return Signature{}
	}
	found, _ := recogniseExt(superblock, 0)
	if found.Type != "" {
		found.Offset += block
	}
	return found
}

// firstNonZero returns the index of the first byte that is not zero, or -1.
func firstNonZero(data []byte) int {
	for i, b := range data {
		if b != 0 {
			return i
		}
	}
	return -1
}
