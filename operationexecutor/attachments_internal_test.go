package operationexecutor

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/internal/keyed"
)

// TestNothingIsKeptOfAttachmentsThatAreNotVerified, also if two verifications watch the same attachment and one of them watches it twice.
func TestNothingIsKeptOfAttachmentsThatAreNotVerified(t *testing.T) {
	var a attachments
	begun := &keyed.Lock{Operation: operationOf(&OperationInfo{Kind: OpDetach, VolumeName: "v", NodeName: "n"})}
	a.begin(begun)
	assert.Empty(t, a.watched)
	asked := map[types.NodeName][]AttachedVolume{"n": {{VolumeName: "v"}, {VolumeName: "v"}}, "m": {{VolumeName: "v"}}}
	first := a.watch(asked)
	a.begin(begun)
	second := a.watch(asked)
	assert.True(t, first.stale("v", "n"))
	assert.False(t, first.stale("v", "m"))
	assert.False(t, second.stale("v", "n"), "it asked afterwards")
	first.end()
	a.begin(begun)
	assert.True(t, second.stale("v", "n"))
	second.end()
	assert.Empty(t, a.watched)
}
