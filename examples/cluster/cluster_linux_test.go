package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/volumekit/volumekit/mount/mounttest"
	"github.com/volumekit/volumekit/store"
)

// TestMain plays the other roles where a test has started this binary for one.
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

func TestPlay(t *testing.T) {
	mounttest.RequireRoot(t)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	require.NoError(t, play(ctx, options{}, newOutput(testOutput{t})))
}

// TestChurn kills agents, controllers, members of etcd and nodes while pods move. CLUSTER_CHURN is for how long, CLUSTER_SEED what
// begins the random numbers.
func TestChurn(t *testing.T) {
	mounttest.RequireRoot(t)
	length, err := time.ParseDuration(valueOf("CLUSTER_CHURN", "15s"))
	require.NoError(t, err)
	var seed uint64
	_, err = fmt.Sscan(valueOf("CLUSTER_SEED", fmt.Sprint(time.Now().UnixNano())), &seed)
	require.NoError(t, err)
	t.Logf("CLUSTER_SEED=%d", seed)

	dir, err := os.MkdirTemp("", "volumekit-churn-") //nolint:usetesting // It is cleaned when no device has a file in it.
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), length+5*time.Minute)
	defer cancel()
	c, err := newCast(ctx, dir, testOutput{t})
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
	churn, err := newChurn(ctx, c, seed, 3)
	require.NoError(t, err)
	for end := time.Now().Add(length); time.Now().Before(end); {
		require.NoError(t, churn.round(ctx))
	}
	require.NoError(t, churn.finish(ctx))
	require.NoError(t, c.stopAll(ctx))
	t.Logf("%d rounds: %v", churn.rounds, churn.faults)
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
	for _, kind := range []schema.GroupVersionKind{store.Nodes, store.VolumeAttachments, store.Pods, store.PersistentVolumes} {
		list, err := s.List(ctx, kind, "")
		assert.NoError(t, err)
		for _, item := range list.Items {
			text, err := json.Marshal(item)
			assert.NoError(t, err)
			t.Logf("%s", text)
		}
	}
}
