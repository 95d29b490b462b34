//go:build !linux

package format

import (
	"context"
	"fmt"
	"os"
	"runtime"

	"github.com/volumekit/volumekit/mount"
)

func unsupported() error {
	return fmt.Errorf("filesystems on %s: %w", runtime.GOOS, mount.ErrUnsupported)
}

func openMedium(string, int) (*os.File, error) { return nil, unsupported() }

func proveBlank(context.Context, *os.File) (int64, error) { return 0, unsupported() }

func canMake(string) error { return unsupported() }

func makeFilesystem(context.Context, *os.File, MakeOptions) error { return unsupported() }

func check(context.Context, *os.File, string) (CheckResult, error) {
	return CheckResult{}, unsupported()
}

func restoreSuperblock(*os.File, []byte) error { return unsupported() }

func setAttribute(*os.File, string, []byte) error { return unsupported() }

func attribute(*os.File, string) ([]byte, error) { return nil, unsupported() }

func grow(context.Context, *os.File, GrowOptions) (GrowResult, error) {
	return GrowResult{}, unsupported()
}

func growUnmounted(context.Context, *os.File, recovery) (GrowResult, error) {
	return GrowResult{}, unsupported()
}

func checkExt(context.Context, *os.File, []string) (CheckResult, error) {
	return CheckResult{}, unsupported()
}

func measure(context.Context, *os.File) (Room, error) { return Room{}, unsupported() }

func renew(context.Context, *os.File, string) error { return unsupported() }
