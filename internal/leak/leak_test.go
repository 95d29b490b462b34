package leak

import (
	"bytes"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

type tests func() int

func (t tests) Run() int { return t() }

func TestWhatStaysIsTold(t *testing.T) {
	var out bytes.Buffer
	stop := make(chan struct{})
	defer close(stop)
	code := run(tests(func() int { go waits(stop); return 0 }), 0, &out)
	assert.Equal(t, 1, code)
	assert.Contains(t, out.String(), "leak.TestWhatStaysIsTold")
}

func waits(stop <-chan struct{}) { <-stop }

func TestADescriptorThatStaysIsTold(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("missing: /proc/self/fd, which lists open files")
	}
	var out bytes.Buffer
	name := filepath.Join(t.TempDir(), "forgotten")
	var file *os.File
	code := run(tests(func() int {
		var err error
		file, err = os.Create(name)
		require.NoError(t, err)
		return 0
	}), 0, &out)
	defer file.Close()
	assert.Equal(t, 1, code)
	assert.Contains(t, out.String(), name)
}

func TestWhatEndsInTimeIsNoLeak(t *testing.T) {
	var out bytes.Buffer
	code := run(tests(func() int {
		stop := make(chan struct{})
		go waits(stop)
		time.AfterFunc(time.Millisecond, func() { close(stop) })
		return 0
	}), Timeout, &out)
	assert.Zero(t, code)
	assert.Empty(t, out.String())
}

func TestARunThatFailedKeepsItsCode(t *testing.T) {
	stop := make(chan struct{})
	defer close(stop)
	assert.Equal(t, 3, run(tests(func() int { go waits(stop); return 3 }), 0, &bytes.Buffer{}))
}

func TestMain(m *testing.M) { os.Exit(Run(m)) }
