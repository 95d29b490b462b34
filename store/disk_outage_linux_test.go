package store_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/internal/faultrun"
	"github.com/volumekit/volumekit/store"
)

// filesystem is a kind of filesystem whose power can be cut.
type filesystem struct {
	name, options string
	size          int64
	mkfs          []string
}

func filesystems() []filesystem {
	return []filesystem{
		// The kernel is not to write by itself, nor in an order that saves who forgets to sync.
		{"ext4", "loop,commit=300,noauto_da_alloc,data=writeback", 64 << 20, []string{"mkfs.ext4", "-q", "-E", "nodiscard"}},
		{"xfs", "loop,nouuid", 320 << 20, []string{"mkfs.xfs", "-q"}},
	}
}

// What is lost with the power: all that was not synced, or, with the log kept, the content of files alone.
const (
	goDown      = 0x8004587d // XFS_IOC_GOINGDOWN, which ext4 has too
	goDownLog   = 1
	goDownNoLog = 2
)

// plugged is a machine with one disk, mounted where no other process sees it.
type plugged struct {
	*testing.T
	kind         filesystem
	image, point string
	namespace    *faultrun.Namespace
}

// plug makes the disk; nil where that is not permitted.
func plug(t *testing.T, kind filesystem) *plugged {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Log("only root mounts filesystems")
		return nil
	}
	if _, err := exec.LookPath(kind.mkfs[0]); err != nil {
		t.Skip("missing: ", kind.mkfs[0])
	}
	dir := t.TempDir()
	p := &plugged{T: t, kind: kind, image: filepath.Join(dir, "image"), point: filepath.Join(dir, "point")}
	require.NoError(t, os.WriteFile(p.image, nil, 0o600))
	require.NoError(t, os.Truncate(p.image, kind.size))
	require.NoError(t, os.Mkdir(p.point, 0o700))
	require.NoError(t, command(kind.mkfs[0], append(kind.mkfs[1:], p.image)...))
	var err error
	p.namespace, err = faultrun.NewNamespace()
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, p.namespace.Close()) })
	return p
}

func command(name string, args ...string) error {
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %v: %w: %s", name, args, err, out)
	}
	return nil
}

// mount mounts the disk. cut cuts the power, and done unmounts it.
func (p *plugged) mount() (cut func(flag int) error, done func()) {
	p.Helper()
	var top *os.File
	require.NoError(p, p.namespace.Do(func() error {
		err := command("mount", "-t", p.kind.name, "-o", p.kind.options, p.image, p.point)
		if err == nil {
			top, err = os.Open(p.point)
		}
		return err
	}))
	cut = func(flag int) error { return unix.IoctlSetPointerInt(int(top.Fd()), goDown, flag) }
	return cut, func() {
		require.NoError(p, top.Close())
		require.NoError(p, p.namespace.Do(func() error { return unix.Unmount(p.point, 0) }))
	}
}

// boot mounts the disk and opens the store on it. done closes both.
func (p *plugged) boot() (s *store.Disk, done func()) {
	p.Helper()
	_, unmount := p.mount()
	require.NoError(p, p.namespace.Do(func() (err error) {
		s, err = store.OpenDisk(filepath.Join(p.point, "store"), store.DiskOptions{})
		return err
	}))
	return s, func() {
		require.NoError(p, s.Close())
		unmount()
	}
}

// TestDiskPowerCutOnAFilesystem kills the program that writes before calls that change the disk or make it durable, and cuts the
// power of a real filesystem then: what was told is there, and nothing is damaged. Each time another sample of the calls is taken,
// to keep within CI's time. (It is not cut under a program that lives: ext4 tells a sync that is under way then that it is done.)
func TestDiskPowerCutOnAFilesystem(t *testing.T) {
	for _, kind := range filesystems() {
		t.Run(kind.name, func(t *testing.T) {
			p := plug(t, kind)
			if p == nil {
				return
			}
			killed := 0
			for n := 1 + os.Getpid()%powerCutEvery; p.outage(n, []int{goDownLog, goDownNoLog}[n%2]); n += powerCutEvery {
				killed++
			}
			assert.Greater(t, killed, 2)
			t.Logf("the power was cut before %d calls", killed)
		})
	}
}

// powerCutEvery is of how many calls one is cut before. It is odd, so that each kind of cut comes before any call in the end.
const powerCutEvery = 11

// outage runs the program until its call n, cuts the power, and looks at what is there. It reports false when there is no such call.
func (p *plugged) outage(n, flag int) bool {
	p.Helper()
	path := filepath.Join(p.point, fmt.Sprintf("store-%d", n))
	cut, done := p.mount()
	var told, wrong bytes.Buffer
	run, err := faultrun.Start(p.Context(), faultrun.Program{
		Path: "/proc/self/exe", Env: append(os.Environ(), envVictim+"="+path, "GORACE=atexit_sleep_ms=0"),
		Stdout: &told, Stderr: &wrong, Judge: faultrun.KillBefore(n), Calls: faultrun.Fallible, Namespace: p.namespace,
	})
	if err != nil {
		done()
	}
	requireFilter(p.T, err, &wrong)
	result, err := run.Wait()
	require.NoError(p, err)
	require.NoError(p, cut(flag))
	done()
	_, done = p.mount()
	defer done()
	var s *store.Disk
	require.NoError(p, p.namespace.Do(func() error {
		s, err = store.OpenDisk(path, store.DiskOptions{CompactBytes: 500})
		return err
	}), "the power was cut before call %d", n)
	checkTold(p.T, s, strings.Count(told.String(), "\n"))
	return result.Killed
}

// TestFullFilesystemStillDeletes fills a real filesystem to the last block.
func TestFullFilesystemStillDeletes(t *testing.T) {
	for _, kind := range filesystems() {
		t.Run(kind.name, func(t *testing.T) {
			p := plug(t, kind)
			if p == nil {
				return
			}
			s, done := p.boot()
			var volumes []*v1.PersistentVolume
			for i := range 50 {
				volumes = append(volumes, createVolume(t, s, fmt.Sprintf("disk-%d", i)))
			}
			ballast := filepath.Join(p.point, "ballast")
			require.ErrorIs(t, p.namespace.Do(func() error { return fillUp(ballast) }), unix.ENOSPC)
			// What fits into the blocks that the journal has is no proof.
			var err error
			for i := 0; err == nil && i < 100; i++ {
				meta := objectMeta("", fmt.Sprintf("more-%d", i), "")
				meta.Annotations = map[string]string{"a": strings.Repeat("a", 100_000)}
				_, err = s.Create(t.Context(), &v1.PersistentVolume{ObjectMeta: meta})
			}
			require.ErrorIs(t, err, store.ErrFull)
			for _, pv := range volumes {
				require.NoError(t, store.Delete(t.Context(), s, pv), "the disk is full")
			}
			require.NoError(t, p.namespace.Do(func() error { return os.Remove(ballast) }))
			createVolume(t, s, "new")
			_, version := state(t, s)
			done()
			s, done = p.boot()
			_, found := state(t, s)
			assert.Equal(t, version, found)
			done()
		})
	}
}

// fillUp writes a file until there is no room, in large pieces and then in small ones.
func fillUp(name string) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	defer f.Close()
	at := int64(0)
	for size := int64(16 << 20); size >= 4096; {
		err = unix.Fallocate(int(f.Fd()), 0, at, size)
		switch {
		case err == nil:
			at += size
		case errors.Is(err, unix.ENOSPC):
			size /= 2
		default:
			return err
		}
	}
	return err
}
