package hostpath

import (
	"context"
	"fmt"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/volume"
)

// leaveBehind runs check, which makes system calls that nothing can interrupt, and returns when ctx ends even if check
// has not: the error is then a [*mount.LostError]. The goroutine ends with check.
func leaveBehind(ctx context.Context, path string, check func() error) error {
	if ctx.Err() != nil {
		return volume.Transient(fmt.Errorf("not started: %w", context.Cause(ctx)))
	}
	done := make(chan struct{})
	var err error
	go func() {
		defer close(done)
		err = check()
	}()
	select {
	case <-done:
		return err
	case <-ctx.Done():
		return mount.NewLostError("stat", path, context.Cause(ctx), done)
	}
}
