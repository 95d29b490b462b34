//go:build !linux

package mounttest

import (
	"fmt"
	"runtime"

	"github.com/volumekit/volumekit/mount"
)

func inside() bool   { return false }
func realRoot() bool { return false }

func makePrivate() error { return noNamespaces() }

func protectMachine(*mount.Mounter) error { return noNamespaces() }

func runAgain() (int, error) { return 0, noNamespaces() }

func leftovers(*mount.Mounter, string) ([]string, error) { return nil, nil }

func noNamespaces() error {
	return fmt.Errorf("mount namespaces on %s: %w", runtime.GOOS, mount.ErrUnsupported)
}
