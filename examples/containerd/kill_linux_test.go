package main

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// startsOf returns what containers have written at their starts.
func (h *host) startsOf() []string {
	h.t.Helper()
	text, err := os.ReadFile(h.path("host/starts"))
	require.NoError(h.t, err)
	return strings.Fields(string(text))
}

// The agent is killed while containers run. They run on, the next agent remounts nothing, and a container that is started again gets its
// volumes.
func TestTheAgentIsKilledWhileContainersRun(t *testing.T) {
	h := newHost(t)
	h.prepare()
	h.apply("pod", everything)
	h.apply("mapped", strings.Replace(mapped, "claimName: shelf", "claimName: data", 1))
	h.startAgent()
	h.untilRuns("main", "privileged", "mapped")
	h.sh("main", "echo kept >/scratch/kept; echo kept >/data/kept; echo kept >/memory/kept")
	pidsOf := func() []int { return []int{h.pid("main"), h.pid("privileged"), h.pid("mapped")} }
	mounts, loops, pids := h.mounts(), h.loops(), pidsOf()
	same := func() {
		t.Helper()
		assert.Equal(t, mounts, h.mounts())
		assert.Equal(t, loops, h.loops())
		assert.Equal(t, pids, pidsOf())
		assert.Equal(t, []string{"started"}, h.startsOf())
	}

	h.kill(h.agent)
	h.sh("main", "$busybox cat /data/kept")
	for range 3 {
		h.startAgent()
		h.sh("main", "$busybox cat /data/kept")
		h.kill(h.agent)
	}
	h.startAgent()
	h.until("the agent knows all volumes", func() bool { return h.logged("msg=\"all pods are known\"") > 0 })
	same()
	h.stopAgent()
	same()
	h.startAgent()

	// A container that ends is started again with the volumes that it had.
	require.NoError(t, syscall.Kill(pids[0], syscall.SIGKILL))
	h.until("main is started again", func() bool { return len(h.startsOf()) == 2 && h.tasks()["main"] == "RUNNING" })
	assert.Equal(t, "kept\nkept\nkept", h.sh("main", "$busybox cat /scratch/kept /data/kept /memory/kept"))
	assert.Equal(t, "inner", h.sh("main", "$busybox cat /inner/file"))
	assert.Equal(t, mounts, h.mounts(), "nothing is mounted again, sub-paths neither")
	assert.Equal(t, pids[1:], pidsOf()[1:])

	// So is one that ends while no agent runs; one in a user namespace gets new id-mapped mounts.
	h.kill(h.agent)
	require.NoError(t, syscall.Kill(pids[2], syscall.SIGKILL))
	h.startAgent()
	h.until("mapped is started again", func() bool { return h.pid("mapped") != pids[2] && h.tasks()["mapped"] == "RUNNING" })
	assert.Equal(t, "kept", h.sh("mapped", "$busybox cat /data/kept"))

	// The pods are gone while no agent runs, and the next one takes them away; it is killed meanwhile.
	h.kill(h.agent)
	h.apply("pod", "")
	h.apply("mapped", "")
	h.apply("objects", "")
	h.startAgent()
	h.kill(h.agent)
	h.startAgent()
	h.untilNothing()
	h.stopAgent()
}

// A shim is killed in use. The volumes stay until the container is known to be gone, and then it is started again.
func TestAShimIsKilled(t *testing.T) {
	h := newHost(t)
	h.prepare()
	h.apply("pod", everything)
	h.startAgent()
	h.untilRuns("main", "privileged")
	h.sh("main", "echo kept >/data/kept")
	mounts, pid := h.mounts(), h.pid("main")
	shims := h.processes("-main")
	require.Len(t, shims, 1)
	require.NoError(t, syscall.Kill(shims[0], syscall.SIGKILL))
	h.until("main is started again", func() bool { return len(h.startsOf()) == 2 && h.tasks()["main"] == "RUNNING" })
	assert.NotEqual(t, pid, h.pid("main"))
	assert.Equal(t, "kept", h.sh("main", "$busybox cat /data/kept"))
	assert.Equal(t, mounts, h.mounts())

	// containerd is down, too: the container of the shim is not removed, and counts as present.
	h.kill(h.containerd)
	pid = h.contain("main")
	for _, shim := range h.processes("-main") {
		require.NoError(t, syscall.Kill(shim, syscall.SIGKILL))
	}
	h.apply("pod", "")
	h.until("the agent says why it waits", func() bool {
		return h.logged("the volumes stay until the containers are known to be gone") > 0 && h.logged("containerd does not answer") > 0
	})
	assert.Equal(t, mounts, h.mounts())
	require.NoError(t, syscall.Kill(pid, 0), "the container runs without its shim")
	h.startContainerd()
	h.apply("objects", "")
	h.untilNothing()
	h.stopAgent()
}

// containerd has forgotten a task whose processes are alive. The agent kills them before the volumes go.
func TestProcessesThatContainerdHasForgottenAreKilled(t *testing.T) {
	h := newHost(t)
	h.prepare()
	h.apply("pod", everything)
	h.startAgent()
	h.untilRuns("main", "privileged")
	id, pid := h.id("main"), h.pid("main")
	h.kill(h.containerd)
	for _, shim := range h.processes("-main") {
		require.NoError(t, syscall.Kill(shim, syscall.SIGKILL))
	}
	bundle := h.path("c/state/io.containerd.runtime.v2.task/" + h.name() + "/" + id)
	require.NoError(t, h.namespace.Do(func() error {
		return errors.Join(unix.Unmount(bundle+"/rootfs", unix.MNT_DETACH), os.RemoveAll(bundle))
	}))
	h.apply("pod", "")
	require.NoError(t, syscall.Kill(pid, 0), "it runs without its shim")
	h.startContainerd()
	h.until("the process is gone", func() bool {
		h.reap()
		return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH)
	})
	h.until("the volumes are gone", func() bool { return len(h.mounts()) == 0 })
	assert.Positive(t, h.logged("are alive without a shim, and were killed"))
	out, err := h.run("runc", "--root", "/run/containerd/runc/"+h.name(), "delete", "-f", id) // what containerd has forgotten
	require.NoError(t, err, out)
	h.apply("objects", "")
	h.untilNothing()
	h.stopAgent()
}

// contain returns the first process of a container, also when containerd does not run.
func (h *host) contain(name string) int {
	h.t.Helper()
	for _, pid := range h.contained() {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
		if err == nil && strings.Contains(string(text), "-"+name+"\n") {
			return pid
		}
	}
	require.Fail(h.t, "no process in "+name)
	return 0
}

// containerd is killed in use. Containers run on, and so do their volumes; the agent says what is wrong, and goes on with the next one.
func TestContainerdIsKilled(t *testing.T) {
	h := newHost(t)
	h.prepare()
	h.apply("pod", everything)
	h.startAgent()
	h.untilRuns("main", "privileged")
	pidsOf := func() []int { return []int{h.pid("main"), h.pid("privileged")} }
	mounts, pids := h.mounts(), pidsOf()
	h.kill(h.containerd)
	h.until("the agent says so", func() bool { return h.logged("containerd does not answer") > 0 })
	require.NoError(t, syscall.Kill(pids[0], 0))
	assert.Equal(t, mounts, h.mounts())
	h.kill(h.agent)
	h.startAgent() // while containerd is down
	h.until("the agent says so", func() bool { return h.logged("not all is as the manifests say") > 0 })
	assert.Equal(t, mounts, h.mounts())

	h.startContainerd()
	h.untilRuns("main", "privileged")
	h.until("the agent knows all containers", func() bool { return h.logged("all pods are known") > 1 })
	assert.Equal(t, pids, pidsOf())
	assert.Equal(t, []string{"started"}, h.startsOf())
	assert.Equal(t, mounts, h.mounts())
	require.NoError(t, syscall.Kill(pids[0], syscall.SIGKILL))
	h.until("main is started again", func() bool { return len(h.startsOf()) == 2 })
	h.apply("pod", "")
	h.apply("objects", "")
	h.untilNothing()
	h.stopAgent()
}
