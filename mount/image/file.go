package image

import (
	"fmt"
	"os"
)

// Allocate makes a file at least size bytes long and allocates space for all of it, without writing to it. If the
// filesystem cannot do this, the error matches errors.ErrUnsupported.
func Allocate(file *os.File, size int64) error {
	if err := allocate(file, size); err != nil {
		return fmt.Errorf("allocating %d bytes for image %q: %w", size, file.Name(), err)
	}
	return nil
}

// Extend makes a file at least size bytes long. It never shortens the file or changes its content, even if another process
// extends it meanwhile. If space was allocated for the whole file, Extend allocates it for the new part too. If the
// filesystem cannot do this in one step, the error matches errors.ErrUnsupported.
func Extend(file *os.File, size int64) error {
	if err := extend(file, size); err != nil {
		return fmt.Errorf("extending image %q to %d bytes: %w", file.Name(), size, err)
	}
	return nil
}

// Space is how much space a file may take in its filesystem, in bytes.
type Space struct {
	// Holes is how many bytes of the file have no space allocated.
	Holes int64
	// Free is how many bytes are free in the filesystem.
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

// Share makes the empty file to share all blocks with from, until one of the two is written. If the filesystem cannot share
// them, the error matches errors.ErrUnsupported, and to is still empty.
func Share(to, from *os.File) error {
	if err := share(to, from); err != nil {
		return fmt.Errorf("FICLONE of %q: %w", from.Name(), err)
	}
	return nil
}

// SharesInOneStep reports whether the filesystem of a file blocks writes to it during [Share]. The copy then holds the
// content of one moment.
func SharesInOneStep(file *os.File) bool { return sharesInOneStep(file) }

// SyncFilesystem syncs the whole filesystem that is mounted at path.
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
