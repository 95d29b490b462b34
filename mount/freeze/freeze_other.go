//go:build !linux

package freeze

import (
	"fmt"
	"os"
	"runtime"
	"time"

	"github.com/volumekit/volumekit/mount"
)

type guard struct{}

func unsupported() error { return fmt.Errorf("freezing on %s: %w", runtime.GOOS, mount.ErrUnsupported) }

func syncAll(*os.File) error { return unsupported() }

func freezeNow(*os.File) error { return unsupported() }

func thawNow(*os.File) (bool, error) { return false, unsupported() }

func startGuard(*os.File, time.Duration) (*guard, error) { return nil, unsupported() }

func (*guard) check() error { return unsupported() }

func (*guard) end() {}

func (*guard) thaw() {}
