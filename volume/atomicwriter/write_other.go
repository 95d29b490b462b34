//go:build !linux

package atomicwriter

import (
	"context"
	"errors"
	"fmt"
)

// write is for Linux only, where a directory that a workload writes to can be worked in safely.
func (w *AtomicWriter) write(context.Context, set) (Result, error) {
	return Result{}, fmt.Errorf("publishing files in %q on this platform: %w", w.dir, errors.ErrUnsupported)
}
