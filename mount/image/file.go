package image

import (
	"fmt"
	"os"
)

// Allocate makes a file at least size bytes long and takes the space of all of it, without writing to it. Where the filesystem cannot
// do it the error matches errors.ErrUnsupported.
func Allocate(file *os.File, size int64) error {
	if err := allocate(file, size); err != nil {
		return fmt.Errorf("allocating %d bytes for image %q: %w", size, file.Name(), err)
	}
	return nil
}

// Extend makes a file end at size, unless it ends later. What it has already is not touched, whoever else extends it meanwhile:
// it is never made shorter. A file whose space was all taken gets that of the new part, too. Where the filesystem cannot do it
// in one step the error matches errors.ErrUnsupported.
func Extend(file *os.File, size int64) error {
	if err := extend(file, size); err != nil {
		return fmt.Errorf("extending image %q to %d bytes: %w", file.Name(), size, err)
	}
	return nil
}

// Space is what a file may take of its filesystem, in bytes.
type Space struct {
	// Holes is how much of the file has no space yet.
	Holes int64
	// Free is how much the filesystem has left.
	Free int64
}

// SpaceOf returns the space of a file.
func SpaceOf(file *os.File) (Space, error) {
	space, err := spaceOf(file)
	if err != nil {
		return Space{}, fmt.Errorf("space of image %q: %w", file.Name(), err)
	}
	return space, nil
}

// Share makes to, which is empty, share all blocks with from until one of them is written. What the filesystem cannot share
// is an error that matches errors.ErrUnsupported, and to is empty still.
func Share(to, from *os.File) error {
	if err := share(to, from); err != nil {
		return fmt.Errorf("FICLONE of %q: %w", from.Name(), err)
	}
	return nil
}

// SharesInOneStep reports whether the filesystem of a file lets nobody write to it while [Share] makes a copy of it, so that this
// holds what the file held at one moment.
func SharesInOneStep(file *os.File) bool { return sharesInOneStep(file) }

// SyncFilesystem writes all that the filesystem mounted at path has in memory.
func SyncFilesystem(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := syncFilesystem(dir); err != nil {
		return fmt.Errorf("syncfs of %q: %w", path, err)
	}
	return nil
}
