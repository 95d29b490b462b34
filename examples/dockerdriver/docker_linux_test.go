package main

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/faultrun"
	"github.com/volumekit/volumekit/internal/record"
	"github.com/volumekit/volumekit/mount/loop"
)

// docker is Debian's command; another one of that name may come earlier in the path.
const docker = "/usr/bin/docker"

// image is what containers run.
const image = "busybox:test"

// host is a mount namespace with a real dockerd and the driver. It has its own /run, in which Docker looks for drivers, and an
// own /etc, in which Docker makes a key.
type host struct {
	t         testing.TB
	dir       string
	program   string // the driver
	namespace *faultrun.Namespace
	dockerd   *exec.Cmd
	driver    *exec.Cmd
}

func newHost(t testing.TB) *host {
	t.Helper()
	for _, needed := range []string{"dockerd", "containerd", "runc", docker, "busybox"} {
		if _, err := exec.LookPath(needed); err != nil {
			t.Skipf("missing: %s", filepath.Base(needed))
		}
	}
	program := build(t).driver
	// What dockerd leaves behind when it is killed becomes ours: no other process may wait for it.
	require.NoError(t, unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
	namespace, err := faultrun.NewNamespace()
	require.NoError(t, err)
	dir, err := os.MkdirTemp("", "d") //nolint:usetesting // the path of a socket must be short
	require.NoError(t, err)
	h := &host{t: t, dir: dir, program: program, namespace: namespace}
	t.Cleanup(h.close)
	for _, name := range []string{"etc", "work"} {
		require.NoError(t, os.Mkdir(h.path(name), 0o700))
	}
	require.NoError(t, namespace.Do(func() error {
		own := fmt.Sprintf("lowerdir=/etc,upperdir=%s,workdir=%s", h.path("etc"), h.path("work"))
		return errors.Join(syscall.Mount("tmpfs", "/run", "tmpfs", 0, "mode=755"), syscall.Mount("overlay", "/etc", "overlay", 0, own))
	}))
	h.startDriver()
	h.startDocker()
	h.importImage()
	return h
}

func (h *host) path(name string) string { return filepath.Join(h.dir, name) }

// start starts a program in the namespace; what it prints is in a file.
func (h *host) start(name string, args ...string) *exec.Cmd {
	h.t.Helper()
	log, err := os.OpenFile(h.path(filepath.Base(name)+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	require.NoError(h.t, err)
	command := exec.Command(name, args...)
	command.Stdout, command.Stderr = log, log
	command.Env = append(os.Environ(), "TMPDIR="+h.dir)
	require.NoError(h.t, h.namespace.Do(command.Start))
	require.NoError(h.t, log.Close())
	return command
}

func (h *host) startDriver() {
	h.t.Helper()
	h.driver = h.start(h.program, "-node", "node-1", "-root", h.path("root"))
}

// startDocker returns when dockerd answers. Nothing of it lies outside of the directory and of /run.
func (h *host) startDocker() {
	h.t.Helper()
	dockerd, err := exec.LookPath("dockerd")
	require.NoError(h.t, err)
	h.dockerd = h.start(dockerd, "--iptables=false", "--ip6tables=false", "--bridge=none", "--data-root", h.path("data"),
		"--exec-root", h.path("exec"), "--pidfile", h.path("pid"), "-H", "unix://"+h.path("d.sock"), "--storage-driver", "overlay2",
		"--shutdown-timeout", "1")
	require.Eventually(h.t, func() bool {
		_, err := h.try(nil, "version")
		return err == nil
	}, time.Minute, 50*time.Millisecond, "dockerd does not answer: %s", tail{h.path("dockerd.log")})
}

// tail prints the last lines of a file.
type tail struct{ name string }

func (l tail) String() string {
	text, err := os.ReadFile(l.name)
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-4000):])
}

// importImage makes an image of busybox alone.
func (h *host) importImage() {
	h.t.Helper()
	path, err := exec.LookPath("busybox")
	require.NoError(h.t, err)
	program, err := os.ReadFile(path)
	require.NoError(h.t, err)
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	require.NoError(h.t, w.WriteHeader(&tar.Header{Name: "bin/busybox", Mode: 0o755, Size: int64(len(program))}))
	_, err = w.Write(program)
	require.NoError(h.t, err)
	for _, applet := range []string{"sh", "cat", "sleep"} {
		require.NoError(h.t, w.WriteHeader(&tar.Header{Name: "bin/" + applet, Typeflag: tar.TypeSymlink, Linkname: "busybox"}))
	}
	require.NoError(h.t, w.Close())
	out, err := h.try(&archive, "import", "-", image)
	require.NoError(h.t, err, out)
}

func (h *host) try(stdin io.Reader, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	command := exec.CommandContext(ctx, docker, append([]string{"-H", "unix://" + h.path("d.sock")}, args...)...)
	command.Env = []string{"HOME=" + h.dir, "DOCKER_CONFIG=" + h.dir}
	command.Stdin = stdin
	out, err := command.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// do runs docker with these arguments.
func (h *host) do(args ...string) string {
	h.t.Helper()
	out, err := h.try(nil, args...)
	require.NoError(h.t, err, "docker %q: %s; %s; %s", args, out, tail{h.path("dockerd.log")}, tail{h.path("dockerdriver.log")})
	return out
}

func (h *host) refused(says string, args ...string) {
	h.t.Helper()
	out, err := h.try(nil, args...)
	require.Error(h.t, err)
	assert.Contains(h.t, out, says)
}

// sh runs a command in a container that is removed afterwards.
func (h *host) sh(bind, script string) string {
	h.t.Helper()
	return h.do("run", "--rm", "--network", "none", "-v", bind, image, "/bin/sh", "-c", script)
}

// sleeper starts a container that uses a volume until it is removed.
func (h *host) sleeper(name, bind string) {
	h.t.Helper()
	h.do("run", "-d", "--name", name, "--network", "none", "-v", bind, image, "/bin/busybox", "sleep", "100000")
}

func (h *host) kill(command *exec.Cmd) {
	h.t.Helper()
	require.NoError(h.t, command.Process.Kill())
	_ = command.Wait() // it says that it was killed
}

// mounts are the mount points of the driver.
func (h *host) mounts() []string {
	h.t.Helper()
	var found []string
	require.NoError(h.t, h.namespace.Do(func() error {
		table, err := os.ReadFile("/proc/thread-self/mountinfo")
		for line := range strings.Lines(string(table)) {
			if fields := strings.Fields(line); strings.HasPrefix(fields[4], h.path("root")+"/") {
				found = append(found, fields[4])
			}
		}
		return err
	}))
	return found
}

// requireUnused fails unless no volume is mounted or attached.
func (h *host) requireUnused() {
	h.t.Helper()
	require.Empty(h.t, h.mounts())
	devices, err := loop.New(loop.Options{}).Devices(h.t.Context())
	require.NoError(h.t, err)
	for _, d := range devices {
		require.False(h.t, strings.HasPrefix(d.BackingPath, h.path("root")+"/"), "attached: %s", d.BackingPath)
	}
}

// requireNothing is requireUnused that also looks for volumes, their images and their records.
func (h *host) requireNothing() {
	h.t.Helper()
	h.requireUnused()
	require.Empty(h.t, h.do("volume", "ls", "-q"))
	images, err := filepath.Glob(h.path("root/plugins/volumekit.io/loop-block/images/*"))
	require.NoError(h.t, err)
	require.Empty(h.t, images)
	require.NoError(h.t, h.namespace.Do(func() error {
		for _, dir := range []string{h.path("root/state/volumes"), "/run/loop-block/uses", "/run/loop-block/node", h.path("root/state/node")} {
			records, err := record.Peek(dir)
			if err != nil || len(records) > 0 {
				return errors.Join(err, fmt.Errorf("%s has %v", dir, records))
			}
		}
		return nil
	}))
}

// close ends all, containers and their shims too: what has the directory of this host in its command line.
func (h *host) close() {
	for _, command := range []*exec.Cmd{h.dockerd, h.driver} {
		if command != nil && command.ProcessState == nil {
			_ = command.Process.Signal(syscall.SIGTERM)
			_ = command.Wait() // how it ended is no part of a test
		}
	}
	for range 100 {
		left := h.processes()
		if len(left) == 0 {
			break
		}
		for _, pid := range left {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		time.Sleep(10 * time.Millisecond) // until they have ended
	}
	assert.Empty(h.t, h.processes())
	h.reap("containerd-shim")
	assert.NoError(h.t, h.namespace.Close())
	assert.Eventually(h.t, func() bool { return os.RemoveAll(h.dir) == nil }, 10*time.Second, 10*time.Millisecond)
}

// reap waits for the processes of a name that others have left to us, which have ended or are ending.
func (h *host) reap(name string) {
	h.t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/status")
	require.NoError(h.t, err)
	for _, file := range files {
		status, err := os.ReadFile(file)
		pid, notPid := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		ours := strings.Contains(string(status), fmt.Sprintf("PPid:\t%d\n", os.Getpid()))
		if err == nil && notPid == nil && ours && strings.HasPrefix(string(status), "Name:\t"+name+"\n") {
			_, err := unix.Wait4(pid, nil, 0, nil)
			assert.NoError(h.t, err)
		}
	}
}

func (h *host) processes() []int {
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	assert.NoError(h.t, err)
	var found []int
	for _, name := range lines {
		text, err := os.ReadFile(name)
		pid, notPid := strconv.Atoi(filepath.Base(filepath.Dir(name)))
		if err == nil && notPid == nil && pid != os.Getpid() && strings.Contains(string(text), h.dir+"/") {
			found = append(found, pid)
		}
	}
	return found
}

// open is how many files the driver has open.
func (h *host) open() int {
	h.t.Helper()
	files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", h.driver.Process.Pid))
	require.NoError(h.t, err)
	return len(files)
}

// A real dockerd uses volumes of loop-block through the driver, and both may be killed meanwhile.
func TestUnderARealDocker(t *testing.T) {
	h := newHost(t)
	for _, one := range []struct {
		name string
		test func(*host)
	}{
		{"a volume keeps what is written", keeps},
		{"two containers share a volume", share},
		{"what the driver says is shown", shows},
		{"the driver is killed in use", driverKilled},
		{"the driver is down, and slow", driverDown},
		{"dockerd is killed in use", dockerKilled},
		{"many cycles leave nothing", cycles},
	} {
		passed := t.Run(one.name, func(t *testing.T) {
			h.t = t
			one.test(h)
			h.requireNothing()
		})
		if !passed {
			break // the others would find its rest
		}
	}
	h.t = t
}

func keeps(h *host) {
	h.do("volume", "create", "-d", "loop-block", "-o", "size=32Mi", "v1")
	h.sh("v1:/data", "echo written >/data/file")
	assert.Equal(h.t, "written", h.sh("v1:/data:ro", "read line </data/file; echo $line"))
	_, err := h.try(nil, "run", "--rm", "--network", "none", "-v", "v1:/data:ro", image, "/bin/sh", "-c", "echo x >/data/file")
	require.Error(h.t, err, "read-only")
	size, err := strconv.Atoi(strings.Fields(h.sh("v1:/data", "busybox df -k /data | busybox tail -n 1"))[1])
	require.NoError(h.t, err)
	assert.Less(h.t, size, 33<<10)
	h.requireUnused()
	h.do("volume", "rm", "v1")
}

func share(h *host) {
	h.do("volume", "create", "-d", "loop-block", "-o", "size=16Mi", "v1")
	h.sleeper("one", "v1:/data")
	h.sleeper("two", "v1:/data")
	assert.Len(h.t, h.mounts(), 2, "staged once, set up once")
	h.do("exec", "one", "/bin/sh", "-c", "echo written >/data/file")
	h.refused("in use", "volume", "rm", "v1")
	h.do("rm", "-f", "one")
	assert.Equal(h.t, "written", h.do("exec", "two", "/bin/sh", "-c", "read line </data/file; echo $line"))
	assert.Len(h.t, h.mounts(), 2)
	h.do("rm", "-f", "two")
	h.requireUnused()
	h.do("volume", "rm", "v1")
}

func shows(h *host) {
	h.refused("sise", "volume", "create", "-d", "loop-block", "-o", "sise=32Mi", "v1")
	h.refused("such as 1Gi", "volume", "create", "-d", "loop-block", "-o", "size=32m", "v1")
	h.do("volume", "create", "-d", "loop-block", "-o", "size=32Mi", "-o", "fsType=ext4", "v1")
	h.sleeper("one", "v1:/data")
	shown := h.do("volume", "inspect", "v1")
	assert.Contains(h.t, shown, `"size": "32Mi"`)
	assert.Contains(h.t, shown, h.path("root")+"/pods/")
	h.do("rm", "-f", "one")
	h.do("volume", "rm", "v1")
}

func driverKilled(h *host) {
	h.do("volume", "create", "-d", "loop-block", "-o", "size=16Mi", "v1")
	h.sleeper("one", "v1:/data")
	before := h.mounts()
	h.kill(h.driver)
	h.do("exec", "one", "/bin/sh", "-c", "echo written >/data/file")
	h.startDriver()
	assert.Equal(h.t, before, h.mounts())
	h.sleeper("two", "v1:/data")
	assert.Equal(h.t, before, h.mounts())
	h.kill(h.driver)
	h.startDriver()
	h.do("rm", "-f", "one")
	assert.Equal(h.t, "written", h.do("exec", "two", "/bin/sh", "-c", "read line </data/file; echo $line"))
	assert.Equal(h.t, before, h.mounts(), "the second container has it")
	h.do("rm", "-f", "two")
	h.requireUnused()
	h.do("volume", "rm", "v1")
}

// While the driver is down or stands still, Docker waits; a volume that its container has goes on.
func driverDown(h *host) {
	h.do("volume", "create", "-d", "loop-block", "-o", "size=16Mi", "v1")
	h.sleeper("one", "v1:/data")
	require.NoError(h.t, h.driver.Process.Signal(syscall.SIGTERM))
	require.NoError(h.t, h.driver.Wait())
	assert.Len(h.t, h.mounts(), 2, "a driver that stops leaves what is in use")
	answer := make(chan error, 1)
	go func() {
		_, err := h.try(nil, "run", "--rm", "--network", "none", "-v", "v1:/data", image, "/bin/sh", "-c", "echo written >/data/file")
		answer <- err
	}()
	h.do("exec", "one", "/bin/sh", "-c", "echo x >/data/other")
	h.startDriver()
	require.NoError(h.t, <-answer)

	require.NoError(h.t, h.driver.Process.Signal(syscall.SIGSTOP))
	go func() {
		_, err := h.try(nil, "rm", "-f", "one")
		answer <- err
	}()
	select {
	case err := <-answer:
		assert.NoError(h.t, err)
		assert.Fail(h.t, "the volume is still mounted")
	case <-time.After(200 * time.Millisecond): // it waits
	}
	require.NoError(h.t, h.driver.Process.Signal(syscall.SIGCONT))
	require.NoError(h.t, <-answer)
	h.requireUnused()
	h.do("volume", "rm", "v1")
}

// A dockerd that starts again ends the containers of the one that was killed, and gives their volumes back.
func dockerKilled(h *host) {
	h.do("volume", "create", "-d", "loop-block", "-o", "size=16Mi", "v1")
	h.sleeper("one", "v1:/data")
	h.do("exec", "one", "/bin/sh", "-c", "echo written >/data/file")
	h.kill(h.dockerd)
	h.reap("containerd") // it ends with dockerd, which counts a process without a parent that waits as alive
	assert.Len(h.t, h.mounts(), 2)
	h.startDocker()
	assert.Equal(h.t, "written", h.sh("v1:/data", "read line </data/file; echo $line"))
	h.do("rm", "-f", "one")
	h.do("volume", "rm", "v1") // also where Docker has forgotten a use
}

// cycles makes, uses and removes a volume, thousand times with all.
func cycles(h *host) {
	n := 5
	if os.Getenv(envAll) != "" {
		n = 1000
	}
	open := 0
	for i := range n {
		h.do("volume", "create", "-d", "loop-block", "-o", "size=16Mi", "v1")
		h.sh("v1:/data", "echo written >/data/file")
		h.do("volume", "rm", "v1")
		if i == min(n-1, 20) {
			open = h.open()
		}
	}
	assert.LessOrEqual(h.t, h.open(), open+2, "files that the driver has open") // a connection of Docker may come and go
}

// BenchmarkDockerRun measures docker run --rm of a container that ends at once, with a volume of this driver, with one of Docker's
// local driver, and without. The three take turns, so that what else the machine does hits all alike.
func BenchmarkDockerRun(b *testing.B) {
	h := newHost(b)
	h.do("volume", "create", "-d", "loop-block", "-o", "size=64Mi", "ours")
	h.do("volume", "create", "local")
	kinds := []string{"none", "local", "ours"}
	took := map[string][]time.Duration{}
	for range max(b.N, 20) {
		for _, kind := range kinds {
			args := []string{"run", "--rm", "--network", "none"}
			if kind != "none" {
				args = append(args, "-v", kind+":/data")
			}
			begun := time.Now()
			h.do(append(args, image, "/bin/busybox", "true")...)
			took[kind] = append(took[kind], time.Since(begun))
		}
	}
	for _, kind := range kinds {
		slices.Sort(took[kind])
		b.ReportMetric(float64(took[kind][len(took[kind])/2].Microseconds())/1000, kind+"-ms")
	}
	h.do("volume", "rm", "ours", "local")
}
