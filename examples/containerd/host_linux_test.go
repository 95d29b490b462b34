package main

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/faultrun"
	"github.com/volumekit/volumekit/mount/loop"
	"github.com/volumekit/volumekit/mount/mounttest"
)

// patience is how long anything may take; it takes milliseconds.
const patience = 2 * time.Minute

// image is what containers run.
const image = "docker.io/library/busybox:test"

// host is a mount namespace with a real containerd, and an agent. It has its own /run, in which containerd's shims have their sockets.
type host struct {
	t          testing.TB
	dir        string
	program    string // the agent
	namespace  *faultrun.Namespace
	containerd *exec.Cmd
	agent      *exec.Cmd
	starts     int // of the agent
}

// configuration is containerd's: all of it lies in one directory, and what no container needs is off.
const configuration = `version = 2
root = "%[1]s/c/root"
state = "%[1]s/c/state"
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.internal.v1.opt", "io.containerd.internal.v1.tracing",
  "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs"]
[grpc]
  address = "%[1]s/c.sock"
`

func newHost(t testing.TB) *host {
	t.Helper()
	mounttest.RequireRoot(t)
	for _, needed := range []string{"containerd", "containerd-shim-runc-v2", "ctr", "runc", "busybox"} {
		if _, err := exec.LookPath(needed); err != nil {
			t.Skipf("missing: %s", needed)
		}
	}
	// What a containerd leaves behind that is killed becomes ours: shims and containers.
	require.NoError(t, unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
	dir, err := os.MkdirTemp("", "c") //nolint:usetesting // the path of a socket must be short
	require.NoError(t, err)
	// Users of containers must reach the root that containerd mounts for them, as they do in /run/containerd.
	require.NoError(t, errors.Join(os.Chmod(filepath.Dir(dir), 0o711), os.Chmod(dir, 0o711)))
	namespace, err := faultrun.NewNamespace()
	require.NoError(t, err)
	h := &host{t: t, dir: dir, namespace: namespace, program: filepath.Join(dir, "containerd-agent")}
	t.Cleanup(h.close)
	build := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-o", h.program, ".")
	out, err := build.CombinedOutput()
	require.NoError(t, err, string(out))
	require.NoError(t, errors.Join(os.Mkdir(h.path("manifests"), 0o700), os.Mkdir(h.path("c"), 0o711)))
	require.NoError(t, os.WriteFile(h.path("c.toml"), fmt.Appendf(nil, configuration, h.dir), 0o600))
	require.NoError(t, namespace.Do(func() error {
		return errors.Join(
			unix.Mount("tmpfs", "/run", "tmpfs", 0, "mode=755"),
			unix.Mount(h.dir, h.dir, "", unix.MS_BIND, ""), unix.Mount("", h.dir, "", unix.MS_SHARED, ""), // as all is under systemd
		)
	}))
	h.startContainerd()
	h.importImage()
	return h
}

func (h *host) path(name string) string { return filepath.Join(h.dir, name) }

// name is the namespace in containerd, and the parent of the cgroups of containers. No other run has it.
func (h *host) name() string { return "volumekit-" + filepath.Base(h.dir) }

// start starts a program in the namespace; what it prints is in a file.
func (h *host) start(name string, args ...string) *exec.Cmd {
	h.t.Helper()
	log, err := os.OpenFile(h.log(name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	require.NoError(h.t, err)
	command := exec.Command(name, args...)
	command.Stdout, command.Stderr = log, log
	command.Env = append(os.Environ(), "TMPDIR="+h.dir)
	require.NoError(h.t, h.namespace.Do(command.Start))
	require.NoError(h.t, log.Close())
	return command
}

func (h *host) log(program string) string { return h.path(filepath.Base(program) + ".log") }

func (h *host) startAgent() {
	h.t.Helper()
	h.agent = h.start(h.program, "-manifests", h.path("manifests"), "-root", h.path("root"), "-run", h.path("run"), "-node", "node-1",
		"-containerd", h.path("c.sock"), "-namespace", h.name(), "-retry", "10ms")
	h.starts++
	h.until("the agent begins", func() bool { return h.logged("the agent begins") == h.starts })
}

// logged returns how often the agents have logged something.
func (h *host) logged(text string) int {
	log, err := os.ReadFile(h.log(h.program))
	require.NoError(h.t, err)
	return bytes.Count(log, []byte(text))
}

func (h *host) startContainerd() {
	h.t.Helper()
	h.containerd = h.start("/usr/bin/containerd", "--config", h.path("c.toml"))
	h.until("containerd answers", func() bool {
		_, err := h.tryCtr("version")
		return err == nil
	})
}

// until waits for something to become true.
func (h *host) until(what string, is func() bool) {
	h.t.Helper()
	for begun := time.Now(); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Since(begun) > patience {
			require.Fail(h.t, "it is not so: "+what, "%s\n%s", tail(h.log("containerd")), tail(h.log(h.program)))
		}
	}
}

// tail returns the last lines of a file.
func tail(name string) string {
	text, err := os.ReadFile(name)
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-3000):])
}

// importImage makes an OCI image of busybox alone by hand.
func (h *host) importImage() {
	h.t.Helper()
	path, err := exec.LookPath("busybox")
	require.NoError(h.t, err)
	program, err := os.ReadFile(path)
	require.NoError(h.t, err)
	layer := archive(h.t, []file{
		{name: "bin/busybox", content: program}, {name: "bin/sh", link: "busybox"}, {name: "etc/passwd", content: []byte("root:x:0:0::/:/bin/sh\n")},
	})
	files := []file{{name: "oci-layout", content: []byte(`{"imageLayoutVersion":"1.0.0"}`)}}
	blob := func(mediaType string, content []byte) map[string]any {
		sum := digest.FromBytes(content)
		files = append(files, file{name: "blobs/sha256/" + sum.Encoded(), content: content})
		return map[string]any{"mediaType": mediaType, "digest": sum, "size": len(content)}
	}
	encode := func(value any) []byte {
		text, err := json.Marshal(value)
		require.NoError(h.t, err)
		return text
	}
	const types = "application/vnd.oci.image."
	config := blob(types+"config.v1+json", encode(map[string]any{
		"architecture": "amd64", "os": "linux", "config": map[string]any{"Env": []string{"PATH=/bin"}, "Cmd": []string{"sh"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []digest.Digest{digest.FromBytes(layer)}},
	}))
	manifest := blob(types+"manifest.v1+json", encode(map[string]any{
		"schemaVersion": 2, "config": config, "layers": []any{blob(types+"layer.v1.tar", layer)},
	}))
	manifest["annotations"] = map[string]string{"io.containerd.image.name": image}
	files = append(files, file{name: "index.json", content: encode(map[string]any{"schemaVersion": 2, "manifests": []any{manifest}})})
	require.NoError(h.t, os.WriteFile(h.path("image.tar"), archive(h.t, files), 0o600))
	h.ctr("images", "import", h.path("image.tar"))
}

// file is a file or a link in an archive.
type file struct {
	name    string
	content []byte
	link    string
}

func archive(t testing.TB, files []file) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, f := range files {
		header := &tar.Header{Name: f.name, Mode: 0o755, Size: int64(len(f.content))}
		if f.link != "" {
			header.Typeflag, header.Linkname = tar.TypeSymlink, f.link
		}
		require.NoError(t, w.WriteHeader(header))
		_, err := w.Write(f.content)
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	return out.Bytes()
}

// run runs a program in the namespace, and returns what it prints, of errors too.
func (h *host) run(name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var out bytes.Buffer
	command := exec.CommandContext(ctx, name, args...)
	command.Stdout, command.Stderr = &out, &out
	if err := h.namespace.Do(command.Start); err != nil {
		return "", err
	}
	err := command.Wait()
	return strings.TrimSpace(out.String()), err
}

// tryCtr runs containerd's command for debugging.
func (h *host) tryCtr(args ...string) (string, error) {
	return h.run("/usr/bin/ctr", append([]string{"-a", h.path("c.sock"), "-n", h.name()}, args...)...)
}

func (h *host) ctr(args ...string) string {
	h.t.Helper()
	out, err := h.tryCtr(args...)
	require.NoError(h.t, err, "ctr %q: %s; %s", args, out, tail(h.log("containerd")))
	return out
}

// apply writes a file of manifests; without text, the file is removed. An agent that runs reads it.
func (h *host) apply(name, text string) {
	h.t.Helper()
	text = strings.NewReplacer("IMAGE", image, "HOST", h.dir, "\t", "  ").Replace(text)
	if text == "" {
		require.NoError(h.t, os.Remove(h.path("manifests/"+name+".yaml")))
	} else {
		require.NoError(h.t, os.WriteFile(h.path("manifests/"+name+".yaml"), []byte(text), 0o600))
	}
	if h.agent != nil && h.agent.ProcessState == nil {
		require.NoError(h.t, h.agent.Process.Signal(syscall.SIGHUP))
	}
}

// tasks returns the states of tasks by the names of their containers, without their pods.
func (h *host) tasks() map[string]string {
	h.t.Helper()
	found := map[string]string{}
	for i, line := range strings.Split(h.ctr("tasks", "ls"), "\n") {
		if fields := strings.Fields(line); i > 0 && len(fields) == 3 {
			found[nameOf(fields[0])] = fields[2]
		}
	}
	return found
}

// nameOf returns the name of a container by its id: what comes after the pod's UID.
func nameOf(id string) string { return id[min(len(id), 37):] }

// id returns the id of a container by its name.
func (h *host) id(name string) string {
	h.t.Helper()
	for id := range strings.Lines(h.ctr("containers", "ls", "-q")) {
		if nameOf(strings.TrimSpace(id)) == name {
			return strings.TrimSpace(id)
		}
	}
	require.Fail(h.t, "no container "+name, tail(h.log(h.program)))
	return ""
}

// pid returns the first process of a container, as the host sees it.
func (h *host) pid(name string) int {
	h.t.Helper()
	for line := range strings.Lines(h.ctr("tasks", "ls")) {
		if fields := strings.Fields(line); len(fields) == 3 && nameOf(fields[0]) == name {
			pid, err := strconv.Atoi(fields[1])
			require.NoError(h.t, err)
			return pid
		}
	}
	return 0
}

func (h *host) untilRuns(names ...string) {
	h.t.Helper()
	h.until(fmt.Sprintf("%v run", names), func() bool {
		tasks := h.tasks()
		return !slices.ContainsFunc(names, func(name string) bool { return tasks[name] != "RUNNING" })
	})
}

// trySh runs a script in a container, as runc has it: ctr of this version may lose what a short program prints.
func (h *host) trySh(container, script string) (string, error) {
	h.t.Helper()
	return h.run("runc", "--root", "/run/containerd/runc/"+h.name(), "exec", h.id(container), "/bin/sh", "-c", "busybox=/bin/busybox; "+script)
}

func (h *host) sh(container, script string) string {
	h.t.Helper()
	out, err := h.trySh(container, script)
	require.NoError(h.t, err, "%s: %s: %s", container, script, out)
	return out
}

func (h *host) refused(container, says, script string) {
	h.t.Helper()
	out, err := h.trySh(container, script)
	require.Error(h.t, err, "%s", script)
	assert.Contains(h.t, out, says, script)
}

func (h *host) kill(command *exec.Cmd) {
	h.t.Helper()
	require.NoError(h.t, command.Process.Kill())
	_ = command.Wait() // it says that it was killed
}

// stopAgent ends the agent as a service manager does, and expects that it ends well.
func (h *host) stopAgent() {
	h.t.Helper()
	require.NoError(h.t, h.agent.Process.Signal(syscall.SIGTERM))
	require.NoError(h.t, h.agent.Wait(), tail(h.log(h.program)))
}

// mounts are the mounts of the agent, each as its id and its path: what is mounted again has another id.
func (h *host) mounts() []string {
	h.t.Helper()
	var found []string
	require.NoError(h.t, h.namespace.Do(func() error {
		table, err := os.ReadFile("/proc/thread-self/mountinfo")
		for line := range strings.Lines(string(table)) {
			fields := strings.Fields(line)
			if strings.HasPrefix(fields[4], h.dir+"/") && !strings.HasPrefix(fields[4], h.path("c/")) {
				found = append(found, fields[0]+" "+fields[4])
			}
		}
		return err
	}))
	return found
}

// loops returns the files of the agent that have loop devices.
func (h *host) loops() []string {
	h.t.Helper()
	devices, err := loop.New(loop.Options{}).Devices(h.t.Context())
	require.NoError(h.t, err)
	var found []string
	for _, d := range devices {
		if strings.HasPrefix(d.BackingPath, h.dir+"/") {
			found = append(found, d.BackingPath)
		}
	}
	return found
}

// untilNothing waits until all is gone that pods have: containers, their roots, shims, mounts, devices, directories, cgroups.
func (h *host) untilNothing() {
	h.t.Helper()
	var left []string
	defer func() {
		if h.t.Failed() {
			h.t.Logf("left: %q", left)
		}
	}()
	h.until("nothing is left", func() bool {
		left = h.left()
		return len(left) == 0
	})
}

func (h *host) left() []string {
	h.t.Helper()
	left := slices.Concat(h.mounts(), h.loops(), strings.Fields(h.ctr("containers", "ls", "-q")))
	for _, line := range strings.Split(h.ctr("snapshots", "ls"), "\n")[1:] {
		if !strings.Contains(line, "Committed") {
			left = append(left, line)
		}
	}
	for _, pattern := range []string{
		h.path("root/volumes/pods/*"), h.path("root/volumes/plugins/volumekit.io/loop-block/*/*"), h.path("root/volumes/plugins/kubernetes.io/*/*/*"),
		h.path("run/containers/*"), "/sys/fs/cgroup/*/" + h.name() + "/*-*", "/sys/fs/cgroup/" + h.name() + "/*-*",
	} {
		found, err := filepath.Glob(pattern)
		require.NoError(h.t, err)
		left = append(left, found...)
	}
	for _, pid := range h.processes("containerd-shim") {
		if processes := childrenOf(pid); len(processes) > 0 {
			left = append(left, fmt.Sprintf("shim %d with processes %s", pid, processes))
		}
	}
	return left
}

// childrenOf returns the children of a process. A shim without any is no pod's: containerd 1.6 forgets to end the shim of a task when
// the agent is killed while it has the task deleted. close ends that shim.
func childrenOf(parent int) []string {
	all, _ := filepath.Glob("/proc/[0-9]*/stat") // the pattern is well-formed
	var children []string
	for _, name := range all {
		text, _ := os.ReadFile(name) // A process that has ended is no child.
		_, state, _ := strings.Cut(string(text), ") ")
		if fields := strings.Fields(state); len(fields) > 1 && fields[1] == strconv.Itoa(parent) {
			children = append(children, filepath.Base(filepath.Dir(name)))
		}
	}
	return children
}

// processes returns the processes whose command line has the directory of this host and a word.
func (h *host) processes(word string) []int {
	h.t.Helper()
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	require.NoError(h.t, err)
	var found []int
	for _, name := range lines {
		text, err := os.ReadFile(name)
		pid, notPid := strconv.Atoi(filepath.Base(filepath.Dir(name)))
		if err == nil && notPid == nil && pid != os.Getpid() && strings.Contains(string(text), h.dir+"/") && strings.Contains(string(text), word) {
			found = append(found, pid)
		}
	}
	return found
}

// close ends everything that this host has started, and nothing else.
func (h *host) close() {
	for _, command := range []*exec.Cmd{h.agent, h.containerd} {
		if command != nil && command.ProcessState == nil {
			_ = command.Process.Signal(syscall.SIGTERM)
			_ = command.Wait() // how it ended is no part of a test
		}
	}
	for range 500 {
		left := slices.Concat(h.processes(""), h.contained())
		if len(left) == 0 {
			break
		}
		for _, pid := range left {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		h.reap()
		time.Sleep(10 * time.Millisecond) // until they have ended
	}
	assert.Empty(h.t, h.processes(""))
	h.reap()
	assert.NoError(h.t, h.namespace.Close())
	for _, pattern := range []string{"/sys/fs/cgroup/*/" + h.name(), "/sys/fs/cgroup/" + h.name()} {
		parents, _ := filepath.Glob(pattern) // the pattern is a good one
		for _, parent := range parents {
			children, _ := filepath.Glob(parent + "/*-*")
			for _, dir := range append(children, parent) {
				assert.NoError(h.t, unix.Rmdir(dir))
			}
		}
	}
	assert.Eventually(h.t, func() bool { return os.RemoveAll(h.dir) == nil }, 10*time.Second, 10*time.Millisecond)
}

// contained returns the processes in containers of this host.
func (h *host) contained() []int {
	files, err := filepath.Glob("/proc/[0-9]*/cgroup")
	assert.NoError(h.t, err)
	var found []int
	for _, name := range files {
		text, err := os.ReadFile(name)
		pid, notPid := strconv.Atoi(filepath.Base(filepath.Dir(name)))
		if err == nil && notPid == nil && strings.Contains(string(text), "/"+h.name()+"/") {
			found = append(found, pid)
		}
	}
	return found
}

// reap waits for shims and containers that became ours and have ended. Programs that a test has started are waited for elsewhere.
func (h *host) reap() {
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	assert.NoError(h.t, err)
	for _, file := range files {
		text, err := os.ReadFile(file)
		pid, notPid := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err != nil || notPid != nil {
			continue
		}
		after := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
		started := (h.agent != nil && pid == h.agent.Process.Pid) || (h.containerd != nil && pid == h.containerd.Process.Pid)
		if after[0] == "Z" && after[1] == strconv.Itoa(os.Getpid()) && !started {
			_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil)
		}
	}
}
