package attachdetach

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/volumekit/volumekit/internal/cluster"
)

// TestDecide says what every state of an attachment leads to.
func TestDecide(t *testing.T) {
	const limit = 6 * time.Minute
	free, held := cluster.NotInUse, cluster.ReportedInUse
	for _, c := range []struct {
		name string
		view attachmentView
		want decision
	}{
		{"nothing is there and nothing wanted", attachmentView{}, decision{}},
		{"wanted", attachmentView{wanted: true, node: ready}, decision{step: attach}},
		{"wanted on a sick node", attachmentView{wanted: true, node: notReady}, decision{step: attach}},
		{"wanted, may be there", attachmentView{wanted: true, state: cluster.AttachUncertain, node: ready}, decision{step: attach}},
		{"wanted and there", attachmentView{wanted: true, state: cluster.Attached, node: ready, use: held}, decision{step: keep}},
		{"wanted and there, on a fenced node", attachmentView{wanted: true, state: cluster.Attached, node: fenced}, decision{step: keep}},
		{"being attached", attachmentView{state: cluster.Attaching, node: ready}, decision{}},
		{"being detached, and wanted again", attachmentView{wanted: true, state: cluster.Detaching, node: ready}, decision{}},
		{"let go of", attachmentView{state: cluster.Attached, node: ready, use: free}, decision{step: detach}},
		{"may be there, let go of", attachmentView{state: cluster.AttachUncertain, node: notReady, use: free}, decision{step: detach}},
		{"used by a ready node", attachmentView{state: cluster.Attached, node: ready, use: held, unwantedFor: time.Hour}, decision{}},
		{"used by a sick node", attachmentView{state: cluster.Attached, node: notReady, use: held, unwantedFor: time.Minute, notReadyFor: time.Hour}, decision{after: 5 * time.Minute}},
		{"assumed to be used by a sick node", attachmentView{state: cluster.Attached, node: notReady, unwantedFor: time.Minute, notReadyFor: time.Hour}, decision{after: 5 * time.Minute}},
		{"used by a sick node for too long", attachmentView{state: cluster.Attached, node: notReady, use: held, unwantedFor: limit, notReadyFor: limit}, decision{step: detach, force: ForcedByTimeout}},
		{"used by a node that fell sick late", attachmentView{state: cluster.Attached, node: notReady, use: held, unwantedFor: time.Hour, notReadyFor: time.Minute}, decision{after: 5 * time.Minute}},
		{"used by a node that does not say how it is", attachmentView{state: cluster.Attached, node: silent, use: held, unwantedFor: time.Hour}, decision{}},
		{"let go of by a node that does not say how it is", attachmentView{state: cluster.Attached, node: silent, use: free}, decision{step: detach}},
		{"used by a node without an object", attachmentView{state: cluster.AttachUncertain, node: missing, use: held, unwantedFor: time.Hour}, decision{}},
		{"let go of by a node without an object", attachmentView{state: cluster.AttachUncertain, node: missing, use: free}, decision{}},
		{"wanted on a node without an object", attachmentView{wanted: true, state: cluster.AttachUncertain, node: missing}, decision{step: attach}},
		{"used by a fenced node", attachmentView{state: cluster.Attached, node: fenced, use: held}, decision{step: detach, force: ForcedByFence}},
		{"on a node of others", attachmentView{state: cluster.Attached, node: unmanaged, use: free, unwantedFor: time.Hour}, decision{}},
		{"wanted on a node of others", attachmentView{wanted: true, node: unmanaged}, decision{}},
	} {
		t.Run(c.name, func(t *testing.T) { assert.Equal(t, c.want, decide(c.view, limit)) })
	}
	assert.Equal(t, decision{}, decide(attachmentView{state: cluster.Attached, node: notReady, use: held, unwantedFor: time.Hour, notReadyFor: time.Hour}, -1), "force is turned off")
}
