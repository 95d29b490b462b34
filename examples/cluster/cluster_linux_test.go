package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/volumekit/volumekit/mount/mounttest"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// TestMain runs another role if a test has started this binary for one.
func TestMain(m *testing.M) {
	if os.Getenv(roleVariable) != "" {
		os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
	}
	mounttest.Main(m)
}

// testOutput shows what a cluster does with the test that it is for.
type testOutput struct{ t *testing.T }

func (o testOutput) Write(text []byte) (int, error) {
	o.t.Logf("%s", text)
	return len(text), nil
}

// storages are how a cluster can have its volumes, by the names of tests.
var storages = map[string]options{"as they are": {}, "through CSI": {csi: true}}

func TestDemo(t *testing.T) {
	mounttest.RequireRoot(t)
	// TMPDIR may be too long for sockets: here it has a short name.
	require.NoError(t, unix.Mount(os.TempDir(), "/mnt", "", unix.MS_BIND, ""))
	t.Cleanup(func() { assert.NoError(t, unix.Unmount("/mnt", 0)) })
	for name, o := range storages {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			o.dir = fmt.Sprintf("/mnt/demo-csi-%t", o.csi)
			require.NoError(t, runDemo(ctx, o, newOutput(testOutput{t})))
			require.NoError(t, os.Remove(o.dir), "the directory that it was given is there, and empty")
		})
	}
}

// TestADemoThatCannotBeginSaysSo at once, and with the exit code of an error.
func TestADemoThatCannotBeginSaysSo(t *testing.T) {
	mounttest.RequireRoot(t)
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
	cmd.Env, cmd.Dir = append(os.Environ(), roleVariable+"=1"), "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.CombinedOutput()
	var failed *exec.ExitError
	require.ErrorAs(t, err, &failed)
	assert.Equal(t, 1, failed.ExitCode())
	assert.Contains(t, string(out), errNotRoot.Error())
}

// TestADirectoryThatIsTooLongForSocketsIsRefused before anything is started, and taken away again.
func TestADirectoryThatIsTooLongForSocketsIsRefused(t *testing.T) {
	mounttest.RequireRoot(t)
	dir := filepath.Join(t.TempDir(), strings.Repeat("d", maxSocket))
	require.ErrorIs(t, runDemo(t.Context(), options{dir: dir, csi: true}, newOutput(testOutput{t})), volume.ErrInvalid)
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Empty(t, left)
}

func TestWrongArgumentsAreRefused(t *testing.T) {
	for args, says := range map[string]string{
		"node":                    "-name, -dir, -shared, -etcd",
		"agent -name a -dir d":    "-name, -dir, -shared, -etcd",
		"member -name member-1":   "-name, -dir, -cluster, -client",
		"controller":              "-name, -dir, -shared, -etcd",
		"director":                `there is no role "director"`,
		"-dir d node":             `"node" is no flag`,
		"node -name n -dir d -no": "-no",
	} {
		t.Run(args, func(t *testing.T) {
			var said bytes.Buffer
			assert.Equal(t, 2, run(strings.Fields(args), io.Discard, &said))
			assert.Contains(t, said.String(), says)
			assert.NotContains(t, said.String(), "<nil>")
		})
	}
}

// TestChurn kills agents, controllers, schedulers, members of etcd and nodes, and has controllers, schedulers and nodes stand still
// beyond their leases. Meanwhile pods move, the schedulers place others, for which the rules hold, and claims are restored from snapshots: half of
// the time with volumes as they are, and half of it through CSI. CLUSTER_CHURN is for how long, CLUSTER_SEED what
// begins the random numbers.
func TestChurn(t *testing.T) {
	mounttest.RequireRoot(t)
	length, err := time.ParseDuration(valueOf("CLUSTER_CHURN", "15s"))
	require.NoError(t, err)
	var seed uint64
	_, err = fmt.Sscan(valueOf("CLUSTER_SEED", fmt.Sprint(time.Now().UnixNano())), &seed)
	require.NoError(t, err)
	t.Logf("CLUSTER_SEED=%d", seed)
	for name, o := range storages {
		t.Run(name, func(t *testing.T) { testChurn(t, o, seed, length/time.Duration(len(storages))) })
	}
}

func testChurn(t *testing.T, o options, seed uint64, length time.Duration) {
	dir, err := os.MkdirTemp("", "volumekit-churn-") //nolint:usetesting // It is cleaned when no device has a file in it.
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), length+5*time.Minute)
	defer cancel()
	c, err := newCluster(ctx, dir, o, testOutput{t})
	require.NoError(t, err)
	defer func() {
		assert.NoError(t, c.killAll())
		assert.NoError(t, clean(dir))
	}()
	defer func() {
		if t.Failed() {
			describe(t, c.store)
		}
	}()
	rules := newRules(c.store)
	watching, stop := context.WithCancel(ctx)
	var watch sync.WaitGroup
	watch.Go(func() { rules.run(watching) })
	defer watch.Wait()
	defer stop()
	churn, err := newChurn(ctx, c, rules, seed, 3)
	require.NoError(t, err)
	registered, _, err := store.ListOf[*storagev1.CSINode](ctx, c.store, "")
	require.NoError(t, err)
	require.Len(t, registered, nodeCount+1)
	for _, node := range registered {
		require.Equal(t, o.csi, len(node.Spec.Drivers[0].TopologyKeys) > 0, "through CSI the driver says where the node is")
	}
	for end := time.Now().Add(length); time.Now().Before(end); {
		require.NoError(t, churn.round(ctx))
	}
	require.NoError(t, churn.finish(ctx))
	require.NoError(t, c.stopAll(ctx))
	require.NoError(t, rules.broken())
	placed, most := rules.figures()
	assert.Positive(t, placed)
	t.Logf("%d rounds: %v; %d pods placed, at most %d volumes on a node; %d snapshots restored", churn.rounds, churn.faults, placed, most, churn.taken)
}

func valueOf(variable, otherwise string) string {
	if value := os.Getenv(variable); value != "" {
		return value
	}
	return otherwise
}

// describe shows what the store says of volumes and nodes.
func describe(t *testing.T, s store.Store) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 10*time.Second)
	defer cancel()
	for _, kind := range []schema.GroupVersionKind{store.Nodes, store.VolumeAttachments, store.Pods, store.PersistentVolumes, store.PersistentVolumeClaims, store.CSINodes, store.CSIStorageCapacities} {
		list, err := s.List(ctx, kind, "")
		assert.NoError(t, err)
		for _, item := range list.Items {
			text, err := json.Marshal(item)
			assert.NoError(t, err)
			t.Logf("%s", text)
		}
	}
}
