package csidriver

import (
	"context"

	"google.golang.org/grpc/stats"
)

// withoutPayloads hides requests and answers from a handler. The handler gets their sizes and times.
type withoutPayloads struct{ stats.Handler }

// HandleRPC implements stats.Handler.
func (h withoutPayloads) HandleRPC(ctx context.Context, s stats.RPCStats) {
	switch payload := s.(type) {
	case *stats.OutPayload:
		stripped := *payload
		stripped.Payload = nil
		s = &stripped
	case *stats.InPayload:
		stripped := *payload
		stripped.Payload = nil
		s = &stripped
	}
	h.Handler.HandleRPC(ctx, s)
}
