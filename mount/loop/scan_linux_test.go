package loop

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestLoopNumber(t *testing.T) {
	for name, want := range map[string]int{"loop0": 0, "loop7": 7, "loop1234": 1234} {
		n, ok := loopNumber(name)
		assert.True(t, ok, name)
		assert.Equal(t, want, n, name)
	}
	for _, name := range []string{"", "loop", "loop-control", "loop-1", "loop01", "loop+1", "loop1p1", "sda", "xloop1"} {
		_, ok := loopNumber(name)
		assert.False(t, ok, name)
	}
}

func TestFits(t *testing.T) {
	free := Device{Path: "/dev/loop9"}
	assert.NoError(t, fits(free, AttachOptions{}))
	assert.NoError(t, fits(Device{ReadOnly: true}, AttachOptions{ReadOnly: true}))
	for name, c := range map[string]struct {
		device  Device
		options AttachOptions
	}{
		"read-only for writing": {Device{ReadOnly: true}, AttachOptions{}},
		"writable for reading":  {free, AttachOptions{ReadOnly: true}},
		"a part":                {Device{Offset: 4096}, AttachOptions{}},
		"a limited part":        {Device{SizeLimit: 4096}, AttachOptions{}},
		"about to go":           {Device{AutoClear: true}, AttachOptions{}},
	} {
		assert.ErrorIs(t, fits(c.device, c.options), ErrInUse, name)
	}
}

// TestASilentDeviceMayHaveAFileUnderAnotherName: nothing is known of such a device but a path.
func TestASilentDeviceMayHaveAFileUnderAnotherName(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk.img")
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	const silent = 1 << 20 // no machine has so many
	check := func() error {
		h, err := open(path, unix.O_RDONLY)
		require.NoError(t, err)
		defer h.close()
		f, err := regular(t.Context(), h)
		require.NoError(t, err)
		require.NoError(t, f.checkSilent(nil))
		return f.checkSilent([]int{silent})
	}
	require.NoError(t, check(), "the file has answered, so that it is another one")
	require.NoError(t, os.Link(path, path+".link"))
	require.ErrorIs(t, check(), ErrInUse)
}
