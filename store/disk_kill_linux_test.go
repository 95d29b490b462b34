package store_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/internal/faultrun"
	"github.com/volumekit/volumekit/store"
)

// envVictim makes this binary the program that is killed: it writes to the store in the directory that it names.
const envVictim = "VOLUMEKIT_STORE_TEST_VICTIM"

// victim writes, and tells of each write when the store says that it is done.
func victim(ctx context.Context, path string) error {
	s, err := store.OpenDisk(path, store.DiskOptions{CompactBytes: 500})
	if err != nil {
		return err
	}
	fmt.Println("open")
	for i := range 6 {
		pv, err := store.Create(ctx, s, &v1.PersistentVolume{ObjectMeta: objectMeta("", fmt.Sprintf("disk-%d", i), "")})
		if err != nil {
			return err
		}
		fmt.Println("created", i)
		if err := store.Delete(ctx, s, pv); err != nil {
			return err
		}
		fmt.Println("deleted", i)
	}
	return s.Close()
}

// TestDiskKilledAtEveryCall kills the program that writes before every system call that changes the world. What it was told is
// there, what was under way is or is not, and another can go on at once.
func TestDiskKilledAtEveryCall(t *testing.T) {
	killed := 0
	for n := 1; ; n++ {
		path := filepath.Join(t.TempDir(), "store")
		var told, wrong bytes.Buffer
		run, err := faultrun.Start(t.Context(), faultrun.Program{
			Path: "/proc/self/exe", Env: append(os.Environ(), envVictim+"="+path, "GORACE=atexit_sleep_ms=0"),
			Stdout: &told, Stderr: &wrong, Judge: faultrun.KillBefore(n),
		})
		requireFilter(t, err, &wrong)
		result, err := run.Wait()
		require.NoError(t, err)
		checkKilled(t, path, strings.Count(told.String(), "\n"))
		if !result.Killed {
			require.True(t, result.State.Success(), wrong.String())
			break
		}
		killed++
	}
	assert.Greater(t, killed, 20)
	t.Logf("killed before each of %d calls", killed)
}

// requireFilter skips where the kernel has no such filters.
func requireFilter(t *testing.T, err error, stderr fmt.Stringer) {
	t.Helper()
	if err != nil && (errors.Is(err, errors.ErrUnsupported) || strings.Contains(stderr.String(), "seccomp filter")) && os.Getenv("CI") != "true" {
		t.Skip("missing: a seccomp filter with a listener: " + stderr.String())
	}
	require.NoError(t, err, stderr)
}

// checkKilled opens what was left after so many lines were told: one for opening, one for each write.
func checkKilled(t *testing.T, path string, lines int) {
	t.Helper()
	checkTold(t, openDisk(t, path, store.DiskOptions{CompactBytes: 500}), lines)
}

// checkTold looks into a store of which so many lines were told, writes to it and closes it.
func checkTold(t *testing.T, s *store.Disk, lines int) {
	t.Helper()
	found, version := state(t, s)
	require.Contains(t, []string{fmt.Sprint(max(lines-1, 0)), fmt.Sprint(lines)}, version)
	number, err := strconv.Atoi(version)
	require.NoError(t, err)
	require.Len(t, found, number%2, "each is deleted before the next is created")
	createVolume(t, s, "next")
	require.NoError(t, s.Close())
}
