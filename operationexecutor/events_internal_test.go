package operationexecutor

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	v1 "k8s.io/api/core/v1"
)

// TestWithoutARecorderASuccessCostsNothing holds for the text of the event too.
func TestWithoutARecorderASuccessCostsNothing(t *testing.T) {
	g, pod, name := &generator{}, &v1.Pod{}, strings.Repeat("data", 10)
	assert.Zero(t, testing.AllocsPerRun(100, func() {
		g.succeeded(podObject(pod), reasonSuccessfulMountVolume, "volume %q is mounted", name)
	}))
}
