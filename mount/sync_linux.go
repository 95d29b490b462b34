package mount

import (
	"context"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/abandonable"
)

// syncFS is SyncFS.
func (m *Mounter) syncFS(ctx context.Context, target string) error {
	p, err := m.reader.openParent(ctx, target)
	if err != nil {
		return err
	}
	defer p.close()
	mounted, err := p.mounted(ctx)
	switch {
	case err != nil:
		return err
	case !mounted:
		return ErrNotMounted
	}
	if err := abandonable.Begin(ctx, "open"); err != nil {
		return err
	}
	// A descriptor of O_PATH would not do.
	fd, err := retryOpen(func() (int, error) {
		return unix.Openat(p.parent, p.base, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return fmt.Errorf("open: %w", err)
	}
	defer closeFD(fd)
	if err := abandonable.Begin(ctx, "syncfs"); err != nil {
		return err
	}
	if err := retry(func() error { return unix.Syncfs(fd) }); err != nil {
		return fmt.Errorf("syncfs: %w", err)
	}
	return nil
}
