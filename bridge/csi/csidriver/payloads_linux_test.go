package csidriver

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/stats"

	"github.com/volumekit/volumekit/bridge/csi/internal/fakedriver"
	"github.com/volumekit/volumekit/mount/mounttest"
)

// span is a key of contexts.
type span struct{}

// told keeps the calls that it is told of, with the spans of their contexts, and what it sees of requests and answers.
type told struct {
	mu       sync.Mutex
	calls    map[string]any
	bytes    int
	payloads []any
}

func (h *told) TagRPC(ctx context.Context, call *stats.RPCTagInfo) context.Context {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls[call.FullMethodName] = ctx.Value(span{})
	return ctx
}

func (h *told) HandleRPC(_ context.Context, s stats.RPCStats) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch s := s.(type) {
	case *stats.OutPayload:
		h.see(s.Payload, s.Length)
	case *stats.InPayload:
		h.see(s.Payload, s.Length)
	}
}

func (h *told) see(payload any, bytes int) {
	h.bytes += bytes
	if payload != nil {
		h.payloads = append(h.payloads, payload)
	}
}

func (h *told) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (h *told) HandleConn(context.Context, stats.ConnStats)                       {}

// TestStatsAreToldOfEachCallWithItsContext, from the plugin's call on, and see no request.
func TestStatsAreToldOfEachCallWithItsContext(t *testing.T) {
	mounttest.RequireMounts(t)
	h := &told{calls: make(map[string]any)}
	n := newNode(t, fakedriver.Options{}, func(o *Options) { o.Stats = h })
	require.NoError(t, n.stage())
	require.NoError(t, n.setUp(context.WithValue(t.Context(), span{}, "set-up")))
	require.NoError(t, n.tearDown())
	require.NoError(t, n.unstage())
	h.mu.Lock()
	defer h.mu.Unlock()
	assert.Equal(t, "set-up", h.calls["/csi.v1.Node/NodePublishVolume"])
	assert.Contains(t, h.calls, "/csi.v1.Node/NodeUnpublishVolume")
	assert.Contains(t, h.calls, "/csi.v1.Controller/CreateVolume")
	assert.Positive(t, h.bytes)
	assert.Empty(t, h.payloads)
}
