package descriptor_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/descriptor"
)

func TestMountIDIsThatOfTheMountOfTheFile(t *testing.T) {
	proc, err := os.Open("/proc/self")
	require.NoError(t, err)
	t.Cleanup(func() { proc.Close() })
	ids := map[string]uint64{}
	for name, file := range map[string]*os.File{"proc": proc, "temporary": opened(t)} {
		require.NoError(t, descriptor.With(file, func(fd int) error {
			id, err := descriptor.MountID(fd)
			ids[name] = id
			return err
		}))
	}
	assert.NotEqual(t, ids["proc"], ids["temporary"])
	var stat unix.Statx_t
	require.NoError(t, unix.Statx(unix.AT_FDCWD, "/proc/self", 0, unix.STATX_MNT_ID, &stat))
	if stat.Mask&unix.STATX_MNT_ID == 0 {
		t.Skip("missing: STATX_MNT_ID, Linux 5.8")
	}
	assert.Equal(t, stat.Mnt_id, ids["proc"])
}

func TestADescriptorThatIsNotOpenHasNoMount(t *testing.T) {
	_, err := descriptor.MountID(1 << 20)
	require.ErrorIs(t, err, os.ErrNotExist)
}
