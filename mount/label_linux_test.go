package mount

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestLabelThatTheKernelHasCutIsOneOption has what statmount(2) says of a mount with a label of two categories.
func TestLabelThatTheKernelHasCutIsOneOption(t *testing.T) {
	const text = "source\x00context=\"u:r:t:s0:c1\x00c2\"\x00fscontext=u:r:f\x00rootcontext=\"u:r:t:s0:c1\x00c2\x00c3\"\x00"
	status := mountStatus{
		mask: statmountOptSecArray, optSecNum: 6, optSecArray: uint32(len("source\x00")),
	}
	p := &statusParser{}
	assert.Equal(t, []string{
		"rw", `context="u:r:t:s0:c1,c2"`, "fscontext=u:r:f", `rootcontext="u:r:t:s0:c1,c2,c3"`, "size=1k",
	}, p.superOptions(&status, text, "size=1k"))
}
