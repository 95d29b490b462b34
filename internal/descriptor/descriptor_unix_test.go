//go:build unix

package descriptor_test

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/internal/descriptor"
)

func opened(t *testing.T) *os.File {
	t.Helper()
	file, err := os.Create(filepath.Join(t.TempDir(), "file"))
	require.NoError(t, err)
	t.Cleanup(func() { file.Close() })
	return file
}

func TestCallRepeatsWhatASignalInterrupts(t *testing.T) {
	calls := 0
	err := descriptor.Call(opened(t), func(int) error {
		if calls++; calls < 3 {
			return os.NewSyscallError("fstat", syscall.EINTR)
		}
		return syscall.ENOSPC
	})
	require.ErrorIs(t, err, syscall.ENOSPC)
	assert.Equal(t, 3, calls)
}

func TestWithCallsOnce(t *testing.T) {
	calls := 0
	err := descriptor.With(opened(t), func(int) error { calls++; return syscall.EINTR })
	require.ErrorIs(t, err, syscall.EINTR)
	assert.Equal(t, 1, calls)
}

func TestAClosedFileHasNoDescriptor(t *testing.T) {
	file := opened(t)
	require.NoError(t, file.Close())
	calls := 0
	for _, call := range []func(*os.File, func(int) error) error{descriptor.With, descriptor.Call} {
		require.ErrorIs(t, call(file, func(int) error { calls++; return nil }), os.ErrClosed)
	}
	assert.Zero(t, calls)
}

func TestADescriptorStaysOpenDuringTheCall(t *testing.T) {
	file := opened(t)
	require.NoError(t, descriptor.With(file, func(fd int) error {
		require.NoError(t, file.Close())
		second, err := syscall.Dup(fd)
		require.NoError(t, err)
		return syscall.Close(second)
	}))
}
