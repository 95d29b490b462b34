package mount_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/mounttest"
)

// playHelper makes this binary a mount helper when it is run under the name of one. What it does is said by its type.
func playHelper() {
	play, ok := helpers[strings.TrimPrefix(filepath.Base(os.Args[0]), "mount.")]
	if !ok {
		return
	}
	if err := play(os.Args[1], os.Args[2], os.Args[3:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		exit(32)
	}
	exit(0)
}

// exit ends the process by the system call itself: os.Exit of a binary that was built with -race sleeps for a second
// first, and there are fifty helpers.
func exit(code int) {
	_, _, _ = unix.RawSyscall(unix.SYS_EXIT_GROUP, uintptr(code), 0, 0) // it does not return
}

// helpers are what the helpers do with the source, the directory and the other arguments.
var helpers = map[string]func(source, dir string, rest []string) error{
	"good": func(source, dir string, rest []string) error {
		const reported = 1 << 20 // more than is kept
		fmt.Println(strings.Repeat("noise ", reported/6))
		if source != "good-source" {
			return fmt.Errorf("the source is %q", source)
		}
		return unix.Mount("by-helper", dir, "tmpfs", 0, "size=64k")
	},
	"liar": func(string, string, []string) error { return nil },
	"fail": func(_, dir string, rest []string) error {
		if err := unix.Mount("by-helper", dir, "tmpfs", 0, ""); err != nil {
			return err
		}
		return fmt.Errorf("the server refuses canary-secret and %s", secretsRead(rest))
	},
	"record": func(source, dir string, rest []string) error {
		names, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			return err
		}
		var open []string
		for _, name := range names {
			link, _ := os.Readlink("/proc/self/fd/" + name.Name())
			open = append(open, link)
		}
		record := fmt.Sprintf("args %q\nenv %q\nopen %q\nsecrets %q\ndir %s\n", rest, os.Environ(), open, secretsRead(rest), dir)
		if err := os.WriteFile(source, []byte(record), 0o600); err != nil {
			return err
		}
		return unix.Mount("by-helper", dir, "tmpfs", 0, "")
	},
	"hang": func(source, dir string, _ []string) error {
		if err := unix.Mount("by-helper", dir, "tmpfs", 0, ""); err != nil {
			return err
		}
		child := exec.Command("/proc/self/exe", "/", "/") // in the same process group
		child.Args[0] = "mount.wait"
		if err := child.Start(); err != nil {
			return err
		}
		pids := fmt.Sprintf("%d %d", os.Getpid(), child.Process.Pid)
		if err := os.WriteFile(source+".new", []byte(pids), 0o600); err != nil {
			return err
		}
		if err := os.Rename(source+".new", source); err != nil {
			return err
		}
		return child.Wait()
	},
	"noexec": func(dir, _ string, _ []string) error { return errors.Join(forbidExec(), mountAll(dir)) },
	"exec": func(string, string, []string) error {
		return errors.Join(forbidExec(), exec.Command("/proc/self/exe").Run())
	},
	"wait": func(string, string, []string) error {
		<-time.After(patience) // it is killed long before
		return nil
	},
}

// mountAll mounts and unmounts in every way.
func mountAll(dir string) error {
	for _, without := range variants {
		m := mount.New(mount.Options{Without: without})
		target := filepath.Join(dir, "target")
		for _, request := range []mount.Request{
			{Source: dir, Target: target, Options: []string{"bind", "ro"}},
			{Target: target, FSType: "tmpfs", Options: []string{"size=64k"}},
			{Target: target, Options: []string{"remount", "ro"}},
		} {
			if err := m.Mount(context.Background(), request); err != nil {
				return err
			}
		}
		options := mount.UnmountOptions{Force: time.Minute, Lazy: true}
		if err := mount.UnmountPath(context.Background(), m, target, options); err != nil {
			return err
		}
	}
	return nil
}

// secretsRead reads the file of secrets that the options name.
func secretsRead(rest []string) string {
	if len(rest) < 2 {
		return ""
	}
	for option := range strings.SplitSeq(rest[1], ",") {
		if name, ok := strings.CutPrefix(option, "credentials="); ok {
			content, _ := os.ReadFile(name)
			return string(content)
		}
	}
	return ""
}

// helperWorld has the helpers of the table and a Mounter that knows them.
type helperWorld struct {
	*mount.Mounter
	root, dir string
}

func newHelperWorld(t *testing.T, without mount.Feature) helperWorld {
	t.Helper()
	mounttest.RequireMounts(t)
	w := helperWorld{root: t.TempDir()}
	w.dir = filepath.Join(w.root, "stages")
	options := mount.Options{Without: without, HelperDir: w.dir, Helpers: map[string]mount.Helper{}}
	for kind := range helpers {
		program := filepath.Join(w.root, "mount."+kind)
		require.NoError(t, os.Symlink(ownProgram, program))
		options.Helpers[kind] = mount.Helper{Path: program, Credentials: "credentials"}
	}
	options.Helpers["none"] = mount.Helper{}
	options.Helpers["open"] = mount.Helper{Path: filepath.Join(w.root, "mount.good")}
	w.Mounter = mount.New(options)
	return w
}

func (w helperWorld) request(kind string) mount.Request {
	return mount.Request{Source: kind + "-source", FSType: kind, Target: filepath.Join(w.root, "made", "target")}
}

// untouched checks that nothing is left of a mount.
func (w helperWorld) untouched(t *testing.T) {
	t.Helper()
	_, err := os.Lstat(filepath.Join(w.root, "made"))
	require.ErrorIs(t, err, os.ErrNotExist)
	w.noStage(t)
}

func (w helperWorld) noStage(t *testing.T) {
	t.Helper()
	stages, err := os.ReadDir(w.dir)
	require.NoError(t, err)
	assert.Empty(t, stages)
	table, err := w.List(t.Context())
	require.NoError(t, err)
	for _, mp := range table {
		assert.False(t, strings.HasPrefix(mp.Path, w.dir), mp.Path)
	}
}

func eachHelperWorld(t *testing.T, run func(t *testing.T, w helperWorld)) {
	t.Helper()
	for name, without := range variants {
		t.Run(name, func(t *testing.T) { run(t, newHelperWorld(t, without)) })
	}
}

func TestHelperMountsAndTheMounterMovesIt(t *testing.T) {
	eachHelperWorld(t, func(t *testing.T, w helperWorld) {
		request := w.request("good")
		request.Options = []string{"ro", "nosuid", "size=64k"}
		require.NoError(t, w.Mount(t.Context(), request))
		found, err := w.Lookup(t.Context(), request.Target)
		require.NoError(t, err)
		assert.Equal(t, "by-helper", found.Source)
		assert.Contains(t, found.Options, "nosuid", "whatever the helper has made of the options")
		assert.True(t, found.ReadOnly())
		assert.Empty(t, found.Propagation)
		w.noStage(t)
		require.NoError(t, mount.UnmountPath(t.Context(), w, request.Target, plain))
		w.noStage(t)
	})
}

func TestHelperThatReportsSuccessWithoutAMountHasFailed(t *testing.T) {
	eachHelperWorld(t, func(t *testing.T, w helperWorld) {
		err := w.Mount(t.Context(), w.request("liar"))
		require.ErrorIs(t, err, mount.ErrNotMounted)
		require.NotErrorIs(t, err, mount.ErrUncertain)
		w.untouched(t)
	})
}

func TestWhatAHelperMountedBeforeItFailedIsTakenOff(t *testing.T) {
	eachHelperWorld(t, func(t *testing.T, w helperWorld) {
		request := w.request("fail")
		request.Sensitive = []string{"password=canary-secret", "token=canary,token"}
		err := w.Mount(t.Context(), request)
		var exit *exec.ExitError
		require.ErrorAs(t, err, &exit)
		assert.Equal(t, 32, exit.ExitCode())
		require.NotErrorIs(t, err, mount.ErrUncertain)
		assert.Contains(t, err.Error(), "the server refuses")
		assert.NotContains(t, err.Error(), "canary")
		w.untouched(t)
	})
}

func TestHelperIsToldNoMoreThanItNeeds(t *testing.T) {
	t.Setenv("CANARY_IN_THE_ENVIRONMENT", "canary")
	eachHelperWorld(t, func(t *testing.T, w helperWorld) {
		request := w.request("record")
		request.Source = filepath.Join(w.root, "record")
		request.Options = []string{"vers=3", "noexec", "suid"}
		request.Sensitive = []string{"password=canary-secret", "user=me"}
		require.NoError(t, w.Mount(t.Context(), request))
		content, err := os.ReadFile(request.Source)
		require.NoError(t, err)
		record := string(content)
		assert.Contains(t, record, `args ["-o" "vers=3,noexec,suid,credentials=/proc/self/fd/3"]`)
		assert.Contains(t, record, `env ["PATH=/usr/sbin:/usr/bin:/sbin:/bin" "LC_ALL=C"]`)
		assert.Contains(t, record, `secrets "password=canary-secret\nuser=me\n"`)
		assert.NotContains(t, record, request.Target, "the helper never sees the target")
		_, open, _ := strings.Cut(record, "\nopen ")
		open, _, _ = strings.Cut(open, "\n")
		assert.Contains(t, open, "memfd:credentials")
		assert.NotContains(t, open, w.root, "a descriptor is inherited")
		require.NoError(t, mount.UnmountPath(t.Context(), w, request.Target, plain))
	})
}

func TestSecretsAreNeverArguments(t *testing.T) {
	w := newHelperWorld(t, 0)
	request := w.request("open")
	request.Sensitive = []string{"password=canary-secret"}
	err := w.Mount(t.Context(), request)
	require.ErrorIs(t, err, mount.ErrUnsupported)
	assert.NotContains(t, err.Error(), "canary")
}

func TestNothingCanBeTakenForAFlagOfTheHelper(t *testing.T) {
	w := newHelperWorld(t, 0)
	for name, request := range map[string]mount.Request{
		"source":         {Source: "-orw", FSType: "good"},
		"option":         {Source: "good-source", FSType: "good", Options: []string{"-x"}},
		"source newline": {Source: "a\nb", FSType: "good"},
	} {
		request.Target = filepath.Join(w.root, "made", "target")
		require.ErrorIs(t, w.Mount(t.Context(), request), mount.ErrInvalid, name)
	}
	w.untouched(t)
}

func TestMissingHelperIsUnsupported(t *testing.T) {
	w := newHelperWorld(t, 0)
	err := w.Mount(t.Context(), w.request("none"))
	require.ErrorIs(t, err, mount.ErrUnsupported)
	assert.Contains(t, err.Error(), "/usr/sbin/mount.none")
}

func TestHelpersNeedADirectoryOfTheirOwn(t *testing.T) {
	w := newHelperWorld(t, 0)
	require.NoError(t, os.Mkdir(w.dir, 0o700))
	require.NoError(t, os.Chmod(w.dir, 0o777))
	require.ErrorIs(t, w.Mount(t.Context(), w.request("good")), mount.ErrInvalid)
}

// TestHelperIsKilledWithItsChildren lets a helper mount, start a child and hang.
func TestHelperIsKilledWithItsChildren(t *testing.T) {
	eachHelperWorld(t, func(t *testing.T, w helperWorld) {
		request := w.request("hang")
		request.Source = filepath.Join(w.root, "pids")
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		result := make(chan error, 1)
		go func() { result <- w.Mount(ctx, request) }()
		var pids []string
		require.Eventually(t, func() bool {
			content, err := os.ReadFile(request.Source)
			pids = strings.Fields(string(content))
			return err == nil
		}, patience, tick)
		cancel()
		err := <-result
		require.ErrorIs(t, err, mount.ErrUncertain)
		require.ErrorIs(t, err, context.Canceled)
		var lost *mount.AbandonedError
		if errors.As(err, &lost) { // otherwise the helper was killed and reaped before the call was abandoned
			<-lost.Done()
		}
		require.Len(t, pids, 2)
		for _, pid := range pids {
			number, err := strconv.Atoi(pid)
			require.NoError(t, err)
			require.Eventually(t, func() bool { return hasEnded(number) }, patience, tick)
		}
		w.noStage(t)
		require.NoError(t, mount.UnmountPath(t.Context(), w, request.Target, plain))
		assert.Empty(t, w.Abandoned())
	})
}

// hasEnded reports whether there is no such process, or only what its parent has not asked for yet.
func hasEnded(pid int) bool {
	content, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err != nil || strings.Contains(string(content), ") Z ")
}

// TestStageOfAKilledProgramIsTakenOffByTheNextCall leaves what a program leaves that is killed while its helper runs.
func TestStageOfAKilledProgramIsTakenOffByTheNextCall(t *testing.T) {
	eachHelperWorld(t, func(t *testing.T, w helperWorld) {
		request := w.request("good")
		leave := func() {
			stage := w.StagePath(request.Target)
			require.NoError(t, os.MkdirAll(stage, 0o700))
			require.NoError(t, unix.Mount("stage", stage, "tmpfs", 0, ""))
			require.NoError(t, os.Mkdir(filepath.Join(stage, "mount"), 0o700))
			require.NoError(t, unix.Mount("by-helper", filepath.Join(stage, "mount"), "tmpfs", 0, ""))
		}
		leave()
		require.ErrorIs(t, w.Unmount(t.Context(), request.Target, plain), mount.ErrNotMounted)
		w.noStage(t)
		leave()
		require.NoError(t, w.Mount(t.Context(), request))
		w.noStage(t)
		require.NoError(t, mount.UnmountPath(t.Context(), w, request.Target, plain))
	})
}
