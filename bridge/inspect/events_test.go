package inspect

import (
	"bufio"
	"context"
	"io"
	"iter"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/volumemanager"
)

// told makes the sequence of changes of what is sent on a channel; it ends with the channel.
func told(from <-chan volumemanager.Change) func(context.Context) iter.Seq[volumemanager.Change] {
	return func(ctx context.Context) iter.Seq[volumemanager.Change] {
		return func(yield func(volumemanager.Change) bool) {
			for {
				select {
				case <-ctx.Done():
					return
				case c, ok := <-from:
					if !ok || !yield(c) {
						return
					}
				}
			}
		}
	}
}

// browser is the other end of a stream: a handler that is served in a bubble, without a network.
type browser struct {
	lines  *bufio.Scanner
	close  func()
	served chan struct{}
}

// open asks a handler for a stream. Nothing is buffered between the two, as with a browser that does not read.
func open(t *testing.T, h http.Handler, target string) *browser {
	t.Helper()
	server, client := net.Pipe()
	ctx, cancel := context.WithCancel(t.Context())
	b := &browser{lines: bufio.NewScanner(client), served: make(chan struct{})}
	b.close = func() { cancel(); client.Close() }
	go func() {
		defer close(b.served)
		defer server.Close()
		h.ServeHTTP(&pipeWriter{Conn: server, header: http.Header{}}, httptest.NewRequestWithContext(ctx, http.MethodGet, target, nil))
	}()
	return b
}

// pipeWriter is a response that is written to a pipe.
type pipeWriter struct {
	net.Conn
	header http.Header
}

func (p *pipeWriter) Header() http.Header { return p.header }
func (p *pipeWriter) WriteHeader(int)     {}
func (p *pipeWriter) Flush()              {}

// event reads until an event of a change has come; false when the stream ends before.
func (b *browser) event() bool {
	for b.lines.Scan() {
		if b.lines.Text() == "event: change" {
			return true
		}
	}
	return false
}

func TestAnOpenPageIsToldOfChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, changes := aNode(), make(chan volumemanager.Change)
		n.changes = told(changes)
		b := open(t, handlerOf(n), "/v1/events?pod=b")
		changes <- volumemanager.Change{Volumes: n.status.Volumes[:1]} // that of another pod
		began := time.Now()
		time.AfterFunc(time.Second, func() { changes <- volumemanager.Change{Volumes: n.status.Volumes[1:2]} })
		require.True(t, b.event())
		assert.Equal(t, time.Second, time.Since(began), "the first event is that of the query's pod, at once")

		began = time.Now()
		changes <- volumemanager.Change{PodUID: "uid-gone"}
		require.True(t, b.event(), "a pod that is gone may have been the query's")
		assert.LessOrEqual(t, time.Since(began), 100*time.Millisecond)
		for range 2 {
			require.True(t, b.lines.Scan())
		}
		quiet := time.Now()
		require.True(t, b.lines.Scan())
		assert.Equal(t, ":", b.lines.Text(), "a stream without changes finds out whether its browser is there")
		assert.LessOrEqual(t, time.Since(quiet), keepAliveInterval+eventPause)

		close(changes)
		for b.event() { // The last event says that there may be something new.
		}
		<-b.served // It ends with the manager.
		b.close()
	})
}

// A browser that reads nothing delays no change, and is left when it has not read for long.
func TestASlowBrowserDelaysNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, changes := aNode(), make(chan volumemanager.Change)
		n.changes = told(changes)
		slow := open(t, handlerOf(n), "/v1/events")
		began := time.Now()
		for range 10_000 {
			changes <- volumemanager.Change{}
		}
		assert.Zero(t, time.Since(began))
		<-slow.served
		assert.Equal(t, writeTimeout, time.Since(began))
		slow.close()
	})
}

// A client that does not read its answer does not hold it in memory for long.
func TestAnAnswerThatIsNotReadIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, target := range []string{"/", "/v1/node", "/v1/node.txt", "/live.js"} {
			began := time.Now()
			slow := open(t, handlerOf(aNode()), target)
			<-slow.served
			assert.Equal(t, readTimeout, time.Since(began), target)
			slow.close()
		}
	})
}

func TestAStreamEndsWithItsRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := aNode()
		n.changes = told(nil)
		b := open(t, handlerOf(n), "/v1/events")
		require.True(t, b.lines.Scan())
		b.close()
		<-b.served
		synctest.Wait() // Nothing that it began is left, or the bubble does not end.
	})
}

func TestStreamsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := aNode()
		n.changes = told(nil)
		h := handlerOf(n)
		var open64 []*browser
		for range maxStreams {
			b := open(t, h, "/v1/events")
			require.True(t, b.lines.Scan())
			open64 = append(open64, b)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/v1/events", nil))
		assert.Equal(t, http.StatusServiceUnavailable, w.Code)
		assert.Equal(t, "10", w.Header().Get("Retry-After"))
		for _, b := range open64 {
			b.close()
			<-b.served
		}
		assert.Equal(t, http.StatusBadRequest, do(t, n, http.MethodGet, "/v1/events?limit=no").Code)
	})
}

// A real server and a real manager: the state changes, and the stream says so.
func TestAManagersChangesReachABrowser(t *testing.T) {
	m, _ := newManager(t)
	server := httptest.NewServer(NewNode(m, NodeOptions{}))
	defer server.Close()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- m.Run(ctx) }()
	defer func() { require.NoError(t, <-ended) }()
	defer cancel()

	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+"/v1/events", nil)
	require.NoError(t, err)
	answer, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer answer.Body.Close()
	assert.Equal(t, "text/event-stream", answer.Header.Get("Content-Type"))
	b := &browser{lines: bufio.NewScanner(answer.Body)}
	pod := podWith("shop", 0, 1)
	require.NoError(t, m.AddPod(ctx, pod))
	require.True(t, b.event())

	script, err := http.Get(server.URL + "/live.js")
	require.NoError(t, err)
	defer script.Body.Close()
	text, err := io.ReadAll(script.Body)
	require.NoError(t, err)
	assert.Equal(t, "text/javascript; charset=utf-8", script.Header.Get("Content-Type"))
	assert.Contains(t, string(text), "EventSource")
}
