package mountwatch

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/volumekit/volumekit/volumemanager/internal/podvolume"
)

// TestAMountThatIsBeingTakenAwayIsNoNews when it goes; of every other it is, at once or when the operation on it has ended.
func TestAMountThatIsBeingTakenAwayIsNoNews(t *testing.T) {
	var known mounts
	own := &Mount{Key: podvolume.Key{Volume: "v", Pod: "p"}, path: "/volume", UniqueID: 7}
	known.enter(own)
	suspects := func() (paths []string) {
		known.suspectID(own.UniqueID, func(path string) { paths = append(paths, path) })
		return paths
	}
	assert.Equal(t, []string{"/volume"}, suspects())

	known.begin(own.path)
	assert.Empty(t, suspects(), "an operation is at it")
	assert.True(t, known.end(own.path), "and was no teardown")

	known.begin(own.path)
	known.leave(own)
	assert.Empty(t, suspects(), "an operation takes it away")
	assert.False(t, known.end(own.path))
	assert.Equal(t, []string{"/volume"}, suspects(), "which has ended without")
}
