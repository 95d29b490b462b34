//go:build !linux

package volumetest

import "errors"

// Capacity is known on Linux alone.
func (kernelWorld) Capacity(string) (int64, error) { return 0, errors.ErrUnsupported }

// Group is known on Linux alone.
func (kernelWorld) Group(string) (gid int64, mayWrite bool, err error) {
	return 0, false, errors.ErrUnsupported
}

// CanGive is false: only Linux mounts volumes.
func (kernelWorld) CanGive() bool { return false }
