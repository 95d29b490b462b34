package format

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
)

// TestSizesOfWhatTheKernelIsGiven holds the structures to the sizes that are part of the requests' numbers.
func TestSizesOfWhatTheKernelIsGiven(t *testing.T) {
	for request, size := range map[uint]uintptr{
		ext4ResizeFS:    8,
		xfsGeometryV1:   unsafe.Sizeof(xfsGeom{}),
		xfsGrowData:     unsafe.Sizeof(xfsGrow{}),
		btrfsResize:     unsafe.Sizeof(btrfsVolume{}),
		btrfsDeviceInfo: unsafe.Sizeof(btrfsDevice{}),
		btrfsFSInfo:     unsafe.Sizeof(btrfsInfo{}),
	} {
		assert.Equal(t, uintptr(request>>16&0x3fff), size, "%#x", request)
	}
}
