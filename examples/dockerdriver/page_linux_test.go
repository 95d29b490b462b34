package main

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// fence is a block of the page: commands, or what the commands before have printed.
var fence = regexp.MustCompile("(?ms)^```(sh|text)\n(.*?)^```$")

// TestEachStepOfThePageWorks runs the commands of docs/docker.md, beside a real dockerd, and compares what they print.
func TestEachStepOfThePageWorks(t *testing.T) {
	h := newHost(t)
	page, err := os.ReadFile("../../docs/docker.md")
	require.NoError(t, err)
	// Docker's command, with the socket of this dockerd.
	require.NoError(t, os.Mkdir(h.path("bin"), 0o700))
	command := fmt.Sprintf("#!/bin/sh\nexec %s -H unix://%s \"$@\"\n", docker, h.path("d.sock"))
	require.NoError(t, os.WriteFile(h.path("bin/docker"), []byte(command), 0o700)) //nolint:gosec // a program
	blocks := fence.FindAllStringSubmatch(string(page), -1)
	require.Greater(t, len(blocks), 8)
	printed := ""
	for _, block := range blocks {
		if block[1] == "sh" {
			printed = h.bash(strings.Replace(block[2], "go build -o dockerdriver", "cp "+h.program+" dockerdriver #", 1))
			continue
		}
		for line := range strings.Lines(block[2]) {
			words := strings.ReplaceAll(regexp.QuoteMeta(strings.TrimSpace(line)), `\.\.\.`, ".*")
			require.Regexp(t, "(?m)^"+words+"$", printed)
		}
	}
	h.requireUnused()
}

// bash runs commands in the namespace, in the host's directory. What they start in the background may go on.
func (h *host) bash(script string) string {
	h.t.Helper()
	out, err := os.Create(h.path("printed"))
	require.NoError(h.t, err)
	shell := exec.CommandContext(h.t.Context(), "bash", "-euc", script)
	shell.Dir, shell.Stdout, shell.Stderr = h.dir, out, out
	shell.Env = append(os.Environ(), "HOME="+h.dir, "DOCKER_CONFIG="+h.dir, "PATH="+h.path("bin")+":"+os.Getenv("PATH"))
	require.NoError(h.t, h.namespace.Do(shell.Start))
	err = shell.Wait()
	text, readErr := os.ReadFile(h.path("printed"))
	require.NoError(h.t, readErr)
	require.NoError(h.t, err, "%s: %s", script, text)
	require.NoError(h.t, out.Close())
	return string(text)
}
