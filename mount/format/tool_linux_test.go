package format

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestFindTool(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, mode os.FileMode) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"), mode))
	}
	write("mkfs.good", 0o755)
	write("mkfs.plain", 0o644)
	require.NoError(t, os.Mkdir(filepath.Join(dir, "mkfs.dir"), 0o755))

	path, err := findTool([]string{filepath.Join(dir, "none"), dir}, "mkfs.good", "good-progs")
	require.NoError(t, err)
	assert.Equal(t, filepath.Join(dir, "mkfs.good"), path)
	for _, name := range []string{"mkfs.plain", "mkfs.dir", "mkfs.missing"} {
		_, err := findTool([]string{dir}, name, "good-progs")
		require.ErrorIs(t, err, ErrNoTool, name)
		assert.ErrorContains(t, err, "good-progs", "it names the package")
	}
}

func TestTailKeepsTheEnd(t *testing.T) {
	tail := &tail{limit: 8}
	for _, s := range []string{"0123", "456789", "abcdefghijklmnop"} {
		n, err := tail.Write([]byte(s))
		require.NoError(t, err)
		assert.Equal(t, len(s), n)
	}
	assert.Equal(t, "ijklmnop", tail.String())
}

// slowTool is a tool that starts a child which holds a FIFO open, tells so, and then does nothing for a minute.
const slowTool = `#!/bin/sh
(exec 9>"$1"; echo started >&9; exec sleep 60 >/dev/null 2>&1) &
wait
`

func TestRunKillsTheGroup(t *testing.T) {
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	require.NoError(t, unix.Mkfifo(fifo, 0o600))
	script := filepath.Join(dir, "slow")
	require.NoError(t, os.WriteFile(script, []byte(slowTool), 0o755))
	ctx, cancel := context.WithCancelCause(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- runProgram(ctx, program{path: script, tool: "slow", args: []string{fifo}}, nil) }()

	reader, err := os.Open(fifo) // waits for the child
	require.NoError(t, err)
	defer reader.Close()
	started := make([]byte, 8)
	_, err = reader.Read(started)
	require.NoError(t, err)
	cause := errors.New("the user went home")
	cancel(cause)

	err = <-ended
	require.ErrorIs(t, err, cause)
	var tool *ToolError
	require.ErrorAs(t, err, &tool)
	assert.Equal(t, -1, tool.ExitCode)
	n, err := reader.Read(started)
	assert.Zero(t, n, "the child is dead: no process writes any more")
	assert.Error(t, err)
}

func TestRunReportsTheEndOfTheOutput(t *testing.T) {
	script := filepath.Join(t.TempDir(), "fails")
	body := "#!/bin/sh\nyes filler | head -c 100000\necho the last words >&2\nexit 3\n"
	require.NoError(t, os.WriteFile(script, []byte(body), 0o755))
	err := runProgram(t.Context(), program{path: script, tool: "fails"}, nil)
	var tool *ToolError
	require.ErrorAs(t, err, &tool)
	assert.Equal(t, 3, tool.ExitCode)
	assert.True(t, strings.HasSuffix(strings.TrimSpace(tool.Output), "the last words"), tool.Output)
	assert.LessOrEqual(t, len(tool.Output), maxOutput)
}

func TestRunHasACleanEnvironment(t *testing.T) {
	t.Setenv("MKE2FS_CONFIG", "/somewhere")
	script := filepath.Join(t.TempDir(), "env")
	require.NoError(t, os.WriteFile(script, []byte("#!/bin/sh\nenv\nexit 1\n"), 0o755))
	var tool *ToolError
	require.ErrorAs(t, runProgram(t.Context(), program{path: script, tool: "env"}, nil), &tool)
	assert.NotContains(t, tool.Output, "MKE2FS_CONFIG")
}
