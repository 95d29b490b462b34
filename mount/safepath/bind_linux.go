package safepath

import (
	"context"
	"errors"

	"github.com/volumekit/volumekit/internal/abandonable"
	"github.com/volumekit/volumekit/mount"
)

// bind is Bind.
func (t *tree) bind(ctx context.Context, name, target string, m mount.Interface, options BindOptions) error {
	fd, err := t.openKind(ctx, name, options.Kinds)
	if err != nil {
		return err
	}
	defer closeFD(fd)
	return bindFD(ctx, m, options.request(fdPath(fd), target))
}

// bindFD mounts a request whose source is a descriptor. The kernel follows the name in /proc to the very file that is
// open. It returns only when the mounter's call has really ended: a call that was abandoned may still look at the
// descriptor, whose number must not be another file's by then.
func bindFD(ctx context.Context, m mount.Interface, request mount.Request) error {
	if err := abandonable.Begin(ctx, "mount"); err != nil {
		return err
	}
	return ended(m.Mount(ctx, request))
}

// ended waits for the call that err says was abandoned. The caller of this package has gone by then, or goes soon, and
// has an error of its own.
func ended(err error) error {
	var lost *mount.AbandonedError
	if errors.As(err, &lost) {
		<-lost.Done()
	}
	return err
}
