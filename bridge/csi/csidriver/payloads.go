package csidriver

import (
	"context"

	"google.golang.org/grpc/stats"
)

// withoutPayloads hides requests and answers from a handler. The handler gets their sizes and times.
type withoutPayloads struct{ stats.Handler }

// HandleRPC implements stats.Handler.
func (h withoutPayloads) HandleRPC(ctx context.Context, s stats.RPCStats) {
	switch told := s.(type) {
	case *stats.OutPayload:
		kept := *told
		kept.Payload = nil
		s = &kept
	case *stats.InPayload:
		kept := *told
		kept.Payload = nil
		s = &kept
	}
	h.Handler.HandleRPC(ctx, s)
}
