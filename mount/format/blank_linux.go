package format

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/abandonable"
)

// chunk is how much is read at once.
const chunk = int64(1) << 20

// proveBlank returns the size of a medium that is proven to be blank. One that is too small for any filesystem is not: a device
// that is not ready may have the size 0.
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
	return size, proveSpans(ctx, file, places(size))
}

func sizeOf(file *os.File) (int64, error) {
	size, err := file.Seek(0, io.SeekEnd)
	if err != nil {
		return 0, fmt.Errorf("cannot find out the size of %q: %w", file.Name(), err)
	}
	return size, nil
}

// dropCached forgets what was read of a device before, so that it is the device that is read: one that several machines
// share may hold something else by now.
func dropCached(file *os.File) error {
	err := onDescriptor(file, func(fd int) error { return unix.Fadvise(fd, 0, 0, unix.FADV_DONTNEED) })
	if err != nil {
		return fmt.Errorf("posix_fadvise of %q: %w", file.Name(), err)
	}
	return nil
}

// proveFile reads every byte of a file that can be other than zero.
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

// nextData returns the next part of the file that is not a hole, at or after offset. A filesystem that knows of no holes
// says that all is data.
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

// notBlank says what it is, if the start or the place tells.
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

// recogniseBackup looks for a backup superblock of ext, which starts with its number of inodes and so not with a zero.
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
