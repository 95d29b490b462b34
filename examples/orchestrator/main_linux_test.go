package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/internal/faultrun"
	"github.com/volumekit/volumekit/mount/mounttest"
)

func TestMain(m *testing.M) {
	faultrun.Main()
	if order, ok := os.LookupEnv(envImages); ok {
		os.Exit(handleImages(order))
	}
	mounttest.Main(m)
}

// programs are the executables that the tests run, built without the race detector: thousands are started.
type programs struct{ agent, second string }

// build builds them.
func build(t *testing.T) programs {
	t.Helper()
	mounttest.RequireRoot(t)
	dir := t.TempDir()
	command := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-o", dir, ".", "../../internal/faultrun/become")
	out, err := command.CombinedOutput()
	require.NoError(t, err, string(out))
	return programs{agent: filepath.Join(dir, "orchestrator"), second: filepath.Join(dir, "become")}
}

// patience is how long the agent may take for anything; it takes milliseconds. One that takes longer hangs.
const patience = time.Minute

// process is one agent that runs.
type process struct {
	run     *faultrun.Run
	told    *transcript
	stop    context.CancelFunc
	settled int // how often it has said so, as far as was waited for
	ended   chan struct{}
	// What follows is there when ended is closed.
	result faultrun.Result
	err    error
}

// settledLine is what the agent prints when the node is what the manifests say.
const settledLine = "everything is as the manifests say\n"

// settle waits until the agent has settled once more, and returns false when it ends instead.
func (p *process) settle(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	p.settled++
	for {
		changed := p.told.changed()
		if p.told.count(settledLine) >= p.settled {
			return true, nil
		}
		select {
		case <-changed:
		case <-p.ended:
			return false, p.err
		case <-ctx.Done():
			return false, fmt.Errorf("the agent does not settle; it has told:\n%s", p.told)
		}
	}
}

// end waits until the agent has ended.
func (p *process) end(ctx context.Context) (faultrun.Result, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	select {
	case <-p.ended:
		return p.result, p.err
	case <-ctx.Done():
		p.stop()
		return faultrun.Result{}, fmt.Errorf("the agent does not end; it has told:\n%s", p.told)
	}
}

// kill ends the agent, whatever it does.
func (p *process) kill() {
	p.stop()
	<-p.ended
}

// transcript is all that an agent has told.
type transcript struct {
	mu   sync.Mutex
	text []byte
	more chan struct{} // closed with the next Write
}

func newTranscript() *transcript { return &transcript{more: make(chan struct{})} }

// Write implements io.Writer.
func (t *transcript) Write(text []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, text...)
	close(t.more)
	t.more = make(chan struct{})
	return len(text), nil
}

// changed returns a channel that is closed when more was told.
func (t *transcript) changed() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.more
}

// count returns how often a line was told.
func (t *transcript) count(line string) int { return strings.Count(t.String(), line) }

func (t *transcript) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.text)
}
