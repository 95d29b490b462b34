package mount_test

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/mounttest"
)

const label = "system_u:object_r:container_file_t:s0:c1,c2"

// TestLabelReachesTheKernelInOnePiece skips the look for SELinux, so that a kernel without it shows what it was given.
func TestLabelReachesTheKernelInOnePiece(t *testing.T) {
	mounttest.RequireMounts(t)
	request := mount.Request{
		Target: filepath.Join(t.TempDir(), "target"), FSType: "tmpfs", SELinuxContext: label, Options: []string{"size=64k"},
	}
	err := mount.New(mount.Options{}).CreateHere(t.Context(), request)
	if err != nil { // SELinux would take the label, or refuse it as one that its policy has not
		require.ErrorIs(t, err, unix.EINVAL)
		assert.Contains(t, err.Error(), "SELinux context")
		assert.NotContains(t, err.Error(), "Unknown parameter 'c2'")
	}
	data, err := request.OldData()
	require.NoError(t, err)
	assert.Equal(t, `size=64k,context="`+label+`"`, data)
}
