//go:build !linux

package ownership

import (
	"context"
	"errors"
	"fmt"
	"runtime"
)

type rules struct{}

func rulesOf(Options) rules { return rules{} }

func (w *work) do(context.Context) error {
	return fmt.Errorf("ownership of %q on %s: %w", w.dir, runtime.GOOS, errors.ErrUnsupported)
}
