package format

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/descriptor"
	"github.com/volumekit/volumekit/mount"
)

func setAttribute(file *os.File, name string, data []byte) error {
	err := descriptor.Call(file, func(fd int) error {
		if data == nil {
			return unix.Fremovexattr(fd, name)
		}
		return unix.Fsetxattr(fd, name, data, 0)
	})
	switch {
	case data == nil && (errors.Is(err, unix.ENODATA) || errors.Is(err, unix.EOPNOTSUPP)):
		return nil
	case errors.Is(err, unix.EOPNOTSUPP):
		return fmt.Errorf("%w: %w", mount.ErrUnsupported, err)
	}
	return errors.Join(err, file.Sync())
}

func attribute(file *os.File, name string) ([]byte, error) {
	data := make([]byte, 4096)
	err := descriptor.Call(file, func(fd int) error {
		n, err := unix.Fgetxattr(fd, name, data)
		data = data[:max(n, 0)]
		return err
	})
	if errors.Is(err, unix.ENODATA) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil, nil
	}
	return data, err
}
