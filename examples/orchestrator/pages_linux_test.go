package main

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// An agent whose manager does not run yet shows its pages, until it ends.
func TestPagesOfTheNodeAndOfTheCluster(t *testing.T) {
	said, out := io.Pipe()
	a, err := newAgent(t.Context(), options{root: t.TempDir(), run: t.TempDir(), node: "node", http: "127.0.0.1:0"}, newOutput(out))
	require.NoError(t, err)
	defer a.database.close()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- a.servePages(ctx) }()
	line, err := bufio.NewReader(said).ReadString('\n')
	require.NoError(t, err)
	url := strings.TrimPrefix(strings.Fields(line)[1], "http://")
	for page, want := range map[string]string{
		url: "The manager does not run",
		strings.Replace(url, "node", "cluster", 1): "0 claims wait",
	} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+page, nil)
		require.NoError(t, err)
		answer, err := http.DefaultTransport.RoundTrip(request)
		require.NoError(t, err)
		body, err := io.ReadAll(answer.Body)
		require.NoError(t, err)
		answer.Body.Close()
		assert.Contains(t, string(body), want)
	}

	taken := strings.TrimSuffix(url, "/node/")
	other := &agent{options: options{http: taken}, out: newOutput(io.Discard)}
	require.ErrorContains(t, other.servePages(t.Context()), "-http "+taken)
	cancel()
	require.NoError(t, <-ended)
}
