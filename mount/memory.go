package mount

import (
	"context"
	"errors"
	"slices"
	"syscall"
)

// MountMemory mounts a tmpfs at target, with options, whose pages are never swapped out where the kernel can promise that:
// from Linux 6.4 on, and outside of user namespaces.
func MountMemory(ctx context.Context, m Interface, target string, options ...string) error {
	request := Request{Source: "tmpfs", Target: target, FSType: "tmpfs", Options: append(slices.Clone(options), "noswap")}
	err := m.Mount(ctx, request)
	if errors.Is(err, syscall.EINVAL) { // which is how others refuse the option
		request.Options = options
		err = m.Mount(ctx, request)
	}
	return err
}
