package main

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// fence is a block of the page: commands, or what the commands before have printed.
var fence = regexp.MustCompile("(?ms)^```(sh|text)\n(.*?)^```$")

// TestEachStepOfThePageWorks runs the commands of docs/containerd.md beside a real containerd, and compares what they print.
func TestEachStepOfThePageWorks(t *testing.T) {
	h := newHost(t)
	page, err := os.ReadFile("../../docs/containerd.md")
	require.NoError(t, err)
	require.NoError(t, h.namespace.Do(func() error {
		if err := os.Mkdir("/run/containerd", 0o711); err != nil && !os.IsExist(err) {
			return err
		}
		return os.Symlink(h.path("c.sock"), "/run/containerd/containerd.sock")
	}))
	require.NoError(t, os.Mkdir(h.path("page"), 0o711))
	require.NoError(t, os.Link(h.path("image.tar"), h.path("page/image.tar")))
	// The namespace of this test, beside that of another run.
	ours := strings.NewReplacer("go build -o agent .", "cp "+h.program+" agent", "-n volumekit", "-n "+h.name(), "./agent ", "./agent -namespace "+h.name()+" ")
	blocks := fence.FindAllStringSubmatch(string(page), -1)
	require.Greater(t, len(blocks), 8)
	printed := ""
	for _, block := range blocks {
		if block[1] == "sh" {
			printed = h.bash(ours.Replace(block[2]))
			continue
		}
		for line := range strings.Lines(block[2]) {
			words := strings.ReplaceAll(regexp.QuoteMeta(strings.TrimSpace(line)), `\.\.\.`, ".*")
			require.Regexp(t, "(?m)^"+words+" *$", printed)
		}
	}
	h.until("the agent has ended", func() bool { return len(h.processes("agent")) == 0 })
	require.Empty(t, h.left())
}

// bash runs commands in the namespace, in a directory of the host's. What they start in the background may go on.
func (h *host) bash(script string) string {
	h.t.Helper()
	out, err := os.Create(h.path("printed"))
	require.NoError(h.t, err)
	shell := exec.CommandContext(h.t.Context(), "bash", "-euc", script)
	shell.Dir, shell.Stdout, shell.Stderr = h.path("page"), out, out
	require.NoError(h.t, h.namespace.Do(shell.Start))
	err = shell.Wait()
	text, readErr := os.ReadFile(h.path("printed"))
	require.NoError(h.t, readErr)
	log, _ := os.ReadFile(h.path("page/agent.log")) // there may be none yet
	require.NoError(h.t, err, "%s: %s: %s", script, text, log)
	require.NoError(h.t, out.Close())
	return string(text)
}
