package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/bridge/inspect"
	"github.com/volumekit/volumekit/controller/persistentvolume"
	"github.com/volumekit/volumekit/examples/internal/container"
	"github.com/volumekit/volumekit/examples/internal/show"
	"github.com/volumekit/volumekit/mount/mounttest"
	"github.com/volumekit/volumekit/volumemanager"
)

func TestRootSeesEveryVolumeMountedUsedAndGone(t *testing.T) {
	mounttest.RequireRoot(t)
	p := newProgram(t, "-json")
	require.Equal(t, 0, p.run(t), p.stderr.String())

	docs := p.documents(t)
	assert.Empty(t, docs["planned"].LeftOut)
	assert.Equal(t, map[string]string{
		"host": hostPath, "shared": emptyDir, "memory": emptyDir, "data": loopBlock, "library": loopBlock,
	}, pluginsOf(docs["ready"].Volumes))
	for _, v := range docs["ready"].Volumes {
		assert.Equal(t, "mounted", v.Phase, v.Volume)
		assert.Positive(t, v.ReadyMillis, v.Volume)
		assert.Equal(t, v.Volume == "library", v.ReadOnly, v.Volume)
		if v.Plugin != hostPath {
			assert.True(t, strings.HasPrefix(v.Path, docs["planned"].Root+"/"), v.Path)
			require.NotNil(t, v.Size, v.Volume)
			require.NotNil(t, v.Used, v.Volume)
			assert.Greater(t, *v.Size, *v.Used, v.Volume)
		}
	}
	assertUsed(t, docs["used"].Findings)
	require.Contains(t, docs, "gone")
	assert.True(t, docs["gone"].Left.Empty())
	assert.NoDirExists(t, docs["planned"].Root)
}

// assertUsed checks what the containers of the built-in pod must find.
func assertUsed(t *testing.T, findings []container.Finding) {
	t.Helper()
	did := make(map[string]string)
	for _, f := range findings {
		assert.Empty(t, f.Error, f.MountPath)
		did[f.Container+" "+f.MountPath] += f.Did + "\n"
	}
	assert.Contains(t, did["writer /data"], "wrote")
	assert.Contains(t, did["writer /shared"], "wrote")
	assert.Contains(t, did["writer /memory"], "wrote")
	assert.Contains(t, did["reader /shared"], "read what container writer wrote")
	assert.Contains(t, did["reader /shared"], "read-only")
	assert.Contains(t, did["reader /data"], "read what container writer wrote")
	assert.Contains(t, did["writer /data"], "read what container reader wrote")
	assert.Contains(t, did["reader /library"], "read-only")
	assert.Contains(t, did["reader /host/usr"], "read-only")
}

func pluginsOf(rows []show.Row) map[string]string {
	plugins := make(map[string]string)
	for _, r := range rows {
		plugins[r.Volume] = r.Plugin
	}
	return plugins
}

func TestOrdinaryUserSeesWhatNeedsNoRoot(t *testing.T) {
	mounttest.RequireMounts(t)
	p := newProgram(t, "-json")
	p.asOrdinaryUser(t)
	code := p.run(t)
	p.requireUserNamespace(t)
	require.Equal(t, 0, code, p.stderr.String())

	docs := p.documents(t)
	require.Len(t, docs["planned"].LeftOut, 2)
	for _, l := range docs["planned"].LeftOut {
		assert.Equal(t, loopBlock, l.Plugin)
		assert.Contains(t, l.Reason, "needs root")
		assert.Contains(t, p.stderr.String(), "left out volume "+l.Volume)
	}
	assert.Equal(t, map[string]string{"host": hostPath, "shared": emptyDir, "memory": emptyDir},
		pluginsOf(docs["ready"].Volumes))
	for _, f := range docs["used"].Findings {
		assert.Empty(t, f.Error, f.MountPath)
	}
	assert.True(t, docs["gone"].Left.Empty())
}

func TestWithoutMkfsTheVolumeIsLeftOut(t *testing.T) {
	mounttest.RequireRoot(t)
	for _, dir := range []string{"/usr/sbin", "/sbin", "/usr/bin", "/bin"} {
		hide(t, filepath.Join(dir, "mkfs.ext4"))
	}
	p := newProgram(t, "-json")
	require.Equal(t, 0, p.run(t), p.stderr.String())
	docs := p.documents(t)
	require.Len(t, docs["planned"].LeftOut, 2)
	for _, l := range docs["planned"].LeftOut {
		assert.Contains(t, l.Reason, "mkfs.ext4")
		assert.Contains(t, l.Reason, "e2fsprogs")
	}
	assert.Len(t, docs["ready"].Volumes, 3)
}

// hide covers a program with something that cannot be run, in this test's mount namespace.
func hide(t *testing.T, path string) {
	t.Helper()
	path, err := filepath.EvalSymlinks(path)
	if os.IsNotExist(err) {
		return
	}
	require.NoError(t, err)
	if unix.Access(path, unix.X_OK) != nil {
		return // covered already, under its other name
	}
	cover := filepath.Join(t.TempDir(), "cover")
	require.NoError(t, os.WriteFile(cover, nil, 0o600))
	require.NoError(t, unix.Mount(cover, path, "", unix.MS_BIND, ""))
	t.Cleanup(func() { assert.NoError(t, unix.Unmount(path, unix.MNT_DETACH)) })
}

func TestTextShowsProgressTableAndProof(t *testing.T) {
	mounttest.RequireMounts(t)
	p := newProgram(t)
	require.Equal(t, 0, p.run(t), p.stderr.String())
	text := p.stdout.String()
	for _, part := range []string{
		"everything is made under " + p.temp, "mounting ...", "VOLUME", "READY AFTER", "memory",
		"read what container writer wrote", "writing was refused: read-only", "unmounted in", "nothing is left: no mount",
	} {
		assert.Contains(t, text, part)
	}
	assert.Empty(t, p.stderr.String())
}

// A pod of one's own, in JSON, from a file, in a directory of one's own that was there before.
func TestOwnManifestsInOwnDirectory(t *testing.T) {
	mounttest.RequireMounts(t)
	file := write(t, "pod.json", `{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "mine", "namespace": "own", "resourceVersion": "5"}, "spec": {
		"containers": [{"name": "c", "image": "none", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}],
		"volumes": [{"name": "v", "emptyDir": {}}, {"name": "unused", "emptyDir": {}}]}}
		{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "other"}, "spec": {
		"containers": [{"name": "c", "image": "none", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}],
		"volumes": [{"name": "v", "emptyDir": {"medium": "Memory"}}]}}`)
	root := t.TempDir()
	p := newProgram(t, "-json", "-f", file, "-root", root)
	require.Equal(t, 0, p.run(t), p.stderr.String())
	docs := p.documents(t)
	require.Len(t, docs["ready"].Volumes, 2)
	assert.Equal(t, "own/mine", docs["ready"].Volumes[0].Pod)
	assert.Equal(t, "default/other", docs["ready"].Volumes[1].Pod)
	assert.Equal(t, root, docs["planned"].Root)
	entries, err := os.ReadDir(root)
	require.NoError(t, err, "a directory that was there before stays")
	assert.Empty(t, entries)
}

// A directory of this machine may be written where the manifest allows it, and keeps its own content only.
func TestHostPathIsWrittenAndLeftAsItWas(t *testing.T) {
	mounttest.RequireMounts(t)
	host := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(host, "own"), []byte("content"), 0o600))
	p := newProgram(t, "-json", "-f", "-")
	p.Stdin = strings.NewReader(pod("hostPath: {path: " + host + "}"))
	require.Equal(t, 0, p.run(t), p.stderr.String())
	require.Len(t, p.documents(t)["used"].Findings, 1)
	assert.Contains(t, p.documents(t)["used"].Findings[0].Did, "wrote")
	entries, err := os.ReadDir(host)
	require.NoError(t, err)
	require.Len(t, entries, 1)
	content, err := os.ReadFile(filepath.Join(host, "own"))
	require.NoError(t, err)
	assert.Equal(t, "content", string(content))
}

func TestPodThatDoesNotBecomeReadyIsExplainedAndTakenAway(t *testing.T) {
	mounttest.RequireMounts(t)
	p := newProgram(t, "-json", "-timeout", "1s", "-f", "-")
	p.Stdin = strings.NewReader(pod("hostPath: {path: /no/such/directory, type: Directory}"))
	assert.Equal(t, show.ExitFailed, p.run(t))
	for _, part := range []string{"default/p", "not ready in time", `"v"`, "/no/such/directory"} {
		assert.Contains(t, p.stderr.String(), part)
	}
	assert.Contains(t, p.documents(t)["failed"].Error, "/no/such/directory")
	assert.Contains(t, p.documents(t), "gone", "it must be taken away and proven all the same")
}

// A claim that fits no volume is one of the reasons, with what the controller says about it.
func TestClaimThatStaysPendingIsExplained(t *testing.T) {
	mounttest.RequireMounts(t)
	p := newProgram(t, "-timeout", "1s", "-f", "-")
	p.Stdin = strings.NewReader(pod(usesClaim) +
		claim("{accessModes: [ReadWriteOnce], storageClassName: \"\", resources: {requests: {storage: 1Gi}}}") +
		"---\napiVersion: v1\nkind: PersistentVolume\nmetadata: {name: small}\n" +
		"spec: {capacity: {storage: 1Mi}, accessModes: [ReadWriteOnce], hostPath: {path: /usr}}\n")
	assert.Equal(t, show.ExitFailed, p.run(t))
	assert.Contains(t, p.stderr.String(), `"v" is unresolved`)
	assert.Equal(t, 1, strings.Count(p.stderr.String(), `claim "default/c" is not bound to a volume yet: FailedBinding: no persistent volumes available`))
}

// A claim that names no class gets the one that is marked as the default.
func TestClaimGetsTheDefaultClass(t *testing.T) {
	mounttest.RequireRoot(t)
	p := newProgram(t, "-json", "-f", "-")
	p.Stdin = strings.NewReader(pod(usesClaim) + claim("{accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}}") +
		"---\napiVersion: storage.k8s.io/v1\nkind: StorageClass\nprovisioner: " + loopBlock + "\nreclaimPolicy: Delete\n" +
		"metadata: {name: k, annotations: {" + persistentvolume.AnnDefaultClass + ": \"true\"}}\n")
	require.Equal(t, 0, p.run(t), p.stderr.String())
	assert.Equal(t, map[string]string{"v": loopBlock}, pluginsOf(p.documents(t)["ready"].Volumes))
}

// A volume whose class says Retain is not deleted: the program says where it is and ends well.
func TestRetainedVolumeIsKeptAndTold(t *testing.T) {
	mounttest.RequireRoot(t)
	text := []byte(builtinPod + "---\n" + builtinStorage)
	root := t.TempDir()
	p := newProgram(t, "-json", "-f", "-", "-root", root)
	p.Stdin = bytes.NewReader(bytes.ReplaceAll(text, []byte("reclaimPolicy: Delete"), []byte("reclaimPolicy: Retain")))
	require.Equal(t, 0, p.run(t), p.stderr.String())
	gone := p.documents(t)["gone"]
	assert.Len(t, gone.Kept, 2)
	assert.Empty(t, gone.Left.Mounts)
	assert.Empty(t, gone.Left.LoopDevices)
	assert.Empty(t, loopFilesUnder(t, root))
	require.NotEmpty(t, gone.Left.Files)
	for _, file := range gone.Left.Files {
		assert.FileExists(t, file)
	}
}

// With -keep everything stays until a signal, another shell can enter, and then everything goes.
func TestKeepWaitsForASignal(t *testing.T) {
	mounttest.RequireMounts(t)
	for name, ordinary := range map[string]bool{"as we are": false, "as an ordinary user": true} {
		t.Run(name, func(t *testing.T) {
			p := newProgram(t, "-json", "-keep")
			if ordinary {
				p.asOrdinaryUser(t)
			}
			kept := p.startUntilKept(t)
			assertOthersCanLook(t, p, kept)
			require.NoError(t, p.Process.Signal(syscall.SIGINT))
			p.finish()
			assert.Equal(t, 0, p.ProcessState.ExitCode(), p.stderr.String())
			p.requireNothingLeft(t)
			assert.Contains(t, p.documents(t), "gone")
		})
	}
}

// With -http a page shows where every volume stands, while the program runs.
func TestAPageShowsTheVolumes(t *testing.T) {
	mounttest.RequireMounts(t)
	p := newProgram(t, "-json", "-keep", "-http", "127.0.0.1:0")
	p.startUntilKept(t)
	var node inspect.NodeAnswer
	require.NoError(t, json.Unmarshal([]byte(get(t, p.url+"v1/node")), &node))
	require.NotEmpty(t, node.Volumes)
	page := get(t, p.url)
	for _, v := range node.Volumes {
		assert.Equal(t, string(volumemanager.PhaseMounted), v.Phase, v.Name)
		assert.Contains(t, page, "<td>"+v.Name+"</td>")
		assert.NotEmpty(t, v.Operations, v.Name)
		assert.False(t, v.ResolvedSince.Before(v.WantedSince), v.Name)
	}
	// A stream that a browser has open does not keep the program from its end.
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, p.url+"v1/events", nil)
	require.NoError(t, err)
	stream, err := http.DefaultTransport.RoundTrip(request)
	require.NoError(t, err)
	defer stream.Body.Close()
	assert.Contains(t, page, "needs attention</h1>")

	require.NoError(t, p.Process.Signal(syscall.SIGINT))
	p.finish()
	assert.Equal(t, 0, p.ProcessState.ExitCode(), p.stderr.String())
	p.requireNothingLeft(t)
}

// get returns what is served at url.
func get(t *testing.T, url string) string {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	require.NoError(t, err)
	response, err := http.DefaultTransport.RoundTrip(request)
	require.NoError(t, err)
	defer response.Body.Close()
	require.Equal(t, http.StatusOK, response.StatusCode)
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return string(body)
}

// startUntilKept starts the program and returns when it has printed that everything is kept. The test ends it and calls
// finish.
func (p *program) startUntilKept(t *testing.T) (kept document) {
	t.Helper()
	p.startReading(t)
	for line := range p.lines {
		var d document
		require.NoError(t, json.Unmarshal(line, &d))
		switch d.Stage {
		case "serving":
			p.url = d.URL
		case "kept":
			return d
		}
	}
	_ = p.Wait() // its output is looked at
	p.requireUserNamespace(t)
	require.Fail(t, "the program ended and kept nothing", p.stderr.String())
	return kept
}

// startReading starts the program; its output comes line by line.
func (p *program) startReading(t *testing.T) {
	t.Helper()
	p.Stdout = nil
	pipe, err := p.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, p.Start())
	p.lines = make(chan []byte)
	go func() {
		defer close(p.lines)
		reader := bufio.NewReader(pipe)
		for {
			line, err := reader.ReadBytes('\n')
			if err != nil {
				return
			}
			p.stdout.Write(line)
			p.lines <- line
		}
	}()
}

// finish reads the rest of the output and waits for the program. Its exit code is in ProcessState.
func (p *program) finish() {
	for line := range p.lines {
		_ = line // it is kept in stdout
	}
	_ = p.Wait() // the exit code is looked at
}

// assertOthersCanLook follows the instructions that the program gave.
func assertOthersCanLook(t *testing.T, p *program, kept document) {
	t.Helper()
	args := append(strings.Fields(kept.Enter), "ls", kept.Containers+"/default/first-light/reader/host~usr/")
	enter := exec.CommandContext(t.Context(), args[0], args[1:]...)
	enter.SysProcAttr = p.SysProcAttr
	out, err := enter.CombinedOutput()
	require.NoError(t, err, string(out))
	assert.Contains(t, string(out), "bin")
	out, err = os.ReadFile("/proc/self/mountinfo")
	require.NoError(t, err)
	assert.NotContains(t, string(out), p.temp, "its mounts must not be seen here")
}

// A volume that another process has open cannot be unmounted. The program reports it and what is left, and unmounts the rest.
func TestVolumeThatIsHeldIsTold(t *testing.T) {
	mounttest.RequireMounts(t)
	p := newProgram(t, "-json", "-keep", "-timeout", "5s")
	kept := p.startUntilKept(t)
	hold := "cd " + kept.Root + "/pods/*/volumes/*/memory && echo held && exec sleep 60"
	args := append(strings.Fields(kept.Enter), "sh", "-c", hold)
	holder := exec.CommandContext(t.Context(), args[0], args[1:]...)
	said, err := holder.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, holder.Start())
	line, err := bufio.NewReader(said).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "held\n", line)

	require.NoError(t, p.Process.Signal(syscall.SIGINT))
	p.finish()
	require.NoError(t, holder.Process.Kill()) // with it goes the last of the program's mount namespace
	_ = holder.Wait()                         // it was killed
	assert.Equal(t, show.ExitFailed, p.ProcessState.ExitCode())
	assert.Contains(t, p.stderr.String(), "quickstart: volumes could not be taken away in time")
	assert.Contains(t, p.stderr.String(), `quickstart:   "memory" is `)
	assert.Regexp(t, `quickstart:   mount /.*/memory\n`, p.stderr.String())
	assert.Empty(t, loopFilesUnder(t, p.temp), "the other volumes must go")
}

// A signal at any moment ends the program in an orderly way.
func TestSignalTakesEverythingAway(t *testing.T) {
	mounttest.RequireMounts(t)
	for _, stage := range []string{"planned", "ready", "used"} {
		t.Run(stage, func(t *testing.T) {
			p := newProgram(t, "-json")
			p.startReading(t)
			for line := range p.lines {
				if strings.Contains(string(line), `"stage":"`+stage+`"`) {
					require.NoError(t, p.Process.Signal(syscall.SIGTERM))
				}
			}
			p.finish()
			p.requireNothingLeft(t)
			code := p.ProcessState.ExitCode()
			assert.Contains(t, []int{0, show.ExitSignal + int(syscall.SIGTERM)}, code, p.stderr.String())
		})
	}
}

// When the first process is killed, the second takes everything away all the same.
func TestKilledParentLeavesNothing(t *testing.T) {
	mounttest.RequireMounts(t)
	p := newProgram(t, "-json", "-keep")
	kept := p.startUntilKept(t)
	child, err := unix.PidfdOpen(kept.PID, 0)
	require.NoError(t, err)
	defer func() { _ = unix.Close(child) }()
	require.NoError(t, p.Process.Kill())
	p.finish()
	_, err = unix.Poll([]unix.PollFd{{Fd: int32(child), Events: unix.POLLIN}}, 30_000)
	require.NoError(t, err)
	p.requireNothingLeft(t)
}

// When the second process is killed, the first says what to do about what stays.
func TestKilledChildIsTold(t *testing.T) {
	mounttest.RequireMounts(t)
	p := newProgram(t, "-json", "-keep", "-f", "-")
	p.Stdin = strings.NewReader(pod("emptyDir: {}"))
	kept := p.startUntilKept(t)
	require.NoError(t, syscall.Kill(kept.PID, syscall.SIGKILL))
	p.finish()
	assert.Equal(t, show.ExitSignal+int(syscall.SIGKILL), p.ProcessState.ExitCode())
	for _, part := range []string{"ended by signal \"killed\"", "losetup -d", "under the root directory"} {
		assert.Contains(t, p.stderr.String(), part)
	}
	assert.DirExists(t, kept.Root)
}

// Pods that share a claim write beside each other, though their containers and paths have the same names.
func TestTwoPodsShareAClaim(t *testing.T) {
	mounttest.RequireMounts(t)
	host := t.TempDir()
	p := newProgram(t, "-json", "-f", "-")
	p.Stdin = strings.NewReader(pod(usesClaim) + "---" + strings.ReplaceAll(pod(usesClaim), "name: p}", "name: q}") +
		claim("{accessModes: [ReadWriteOnce], volumeName: x, resources: {requests: {storage: 1Mi}}}") +
		"---\napiVersion: v1\nkind: PersistentVolume\nmetadata: {name: x}\n" +
		"spec: {capacity: {storage: 1Mi}, accessModes: [ReadWriteOnce], hostPath: {path: " + host + "}}\n")
	require.Equal(t, 0, p.run(t), p.stderr.String())
	require.Len(t, p.documents(t)["used"].Findings, 2)
	entries, err := os.ReadDir(host)
	require.NoError(t, err)
	assert.Empty(t, entries)
}

// A root directory may be a mount point, which is not left but was there, and names may be as long as they may.
func TestRootOnAMountAndLongNames(t *testing.T) {
	mounttest.RequireMounts(t)
	p := newProgram(t, "-f", "-", "-root", mountTmpfs(t, 0))
	p.Stdin = strings.NewReader(strings.ReplaceAll(pod("emptyDir: {}"), "name: p}", "name: "+strings.Repeat("p", 253)+"}"))
	require.Equal(t, 0, p.run(t), p.stderr.String())
	assert.Contains(t, p.stdout.String(), "nothing is left")
}

// The classes are there before the controller looks at the claims.
func TestNoClaimIsToldThatItsClassIsMissing(t *testing.T) {
	mounttest.RequireRoot(t)
	for range 20 {
		p := newProgram(t)
		require.Equal(t, 0, p.run(t), p.stderr.String())
		assert.NotContains(t, p.stdout.String(), "FailedBinding")
	}
}

// No process reads the output any more: the volumes are unmounted all the same.
func TestReaderThatWentAwayLeavesNothing(t *testing.T) {
	mounttest.RequireMounts(t)
	r, w, err := os.Pipe()
	require.NoError(t, err)
	require.NoError(t, r.Close())
	p := newProgram(t)
	p.Stdout = w
	require.Equal(t, 0, p.run(t), p.stderr.String())
	require.NoError(t, w.Close())
}

// What go build makes is the program: it runs the story and refuses bad input with exit code 2.
func TestBuiltBinary(t *testing.T) {
	mounttest.RequireMounts(t)
	path := filepath.Join(t.TempDir(), "quickstart")
	out, err := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-o", path, ".").CombinedOutput()
	require.NoError(t, err, string(out))
	for want, args := range map[int][]string{0: nil, show.ExitBadInput: {"-f", "/no/such/file"}} {
		p := newProgram(t, args...)
		p.Path, p.Args[0] = path, path
		p.Env = append(os.Environ(), "TMPDIR="+p.temp)
		assert.Equal(t, want, p.run(t), p.stderr.String())
	}
}
