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

// span is the key of a value of a context.
type span struct{}

// handler is a stats.Handler. It keeps each call with the span of its context, and every request and answer that it gets.
type handler struct {
	mu       sync.Mutex
	calls    map[string]any
	bytes    int
	payloads []any
}

func (h *handler) TagRPC(ctx context.Context, call *stats.RPCTagInfo) context.Context {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls[call.FullMethodName] = ctx.Value(span{})
	return ctx
}

func (h *handler) HandleRPC(_ context.Context, s stats.RPCStats) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch s := s.(type) {
	case *stats.OutPayload:
		h.see(s.Payload, s.Length)
	case *stats.InPayload:
		h.see(s.Payload, s.Length)
	}
}

func (h *handler) see(payload any, bytes int) {
	h.bytes += bytes
	if payload != nil {
		h.payloads = append(h.payloads, payload)
	}
}

func (h *handler) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (h *handler) HandleConn(context.Context, stats.ConnStats)                       {}

// Options.Stats gets each call with the context of the plugin's call, and no request or answer.
func TestStatsAreToldOfEachCallWithItsContext(t *testing.T) {
	mounttest.RequireMounts(t)
	h := &handler{calls: make(map[string]any)}
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
