package csiserver

import (
	"context"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// A call whose caller has gone begins nothing once it has the lock: the next call of that caller may be over.
func TestACallThatBeginsAfterItsContextChangesNothing(t *testing.T) {
	l := &locks{logger: slog.New(slog.DiscardHandler)}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	begun := false
	begin := func() error { begun = true; return nil }
	require.Equal(t, codes.Canceled, status.Code(l.exclusively(ctx, idLock("id-1"), begin)))
	assert.False(t, begun)
	require.NoError(t, l.exclusively(t.Context(), idLock("id-1"), begin))
	assert.True(t, begun)
}
