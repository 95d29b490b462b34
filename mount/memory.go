package mount

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"slices"
	"syscall"
)

// MountMemory mounts a tmpfs at target, with options, whose pages are never swapped out where the kernel can promise that:
// from Linux 6.4 on, and outside of user namespaces. Its source in the mount table is a mark by which [IsMemoryOf] knows it. Where
// something is mounted already, that one among others, the error matches [ErrMounted] and nothing is changed.
func MountMemory(ctx context.Context, m Interface, target string, options ...string) error {
	request := Request{Source: memorySource(target), Target: target, FSType: memoryType, Exclusive: true, Options: append(slices.Clone(options), "noswap")}
	err := m.Mount(ctx, request)
	if errors.Is(err, syscall.EINVAL) { // which is how others refuse the option
		request.Options = options
		err = m.Mount(ctx, request)
	}
	return err
}

// IsMemoryOf reports whether a mount is the whole of a tmpfs that [MountMemory] has mounted at target, in this process or in
// an earlier one. A tmpfs that another program mounts there has another source.
func IsMemoryOf(target string, found MountPoint) bool { return MemoryIdentity(target).Is(found) }

// MemoryIdentity distinguishes a tmpfs that [MountMemory] has mounted at target from every other mount there. It suffices
// for [UnmountOptions].Expect, so the caller needs no lookup before.
func MemoryIdentity(target string) Identity {
	return Identity{Root: "/", FSType: memoryType, Source: memorySource(target)}
}

// memoryType is the filesystem of [MountMemory].
const memoryType = "tmpfs"

// memorySource is the source of the tmpfs that belongs at target: a mark, of a length that every kernel takes.
func memorySource(target string) string {
	sum := sha256.Sum256([]byte(target))
	return "volumekit-" + hex.EncodeToString(sum[:16])
}
