package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/bridge/inspect"
	"github.com/volumekit/volumekit/mount/mounttest"
)

// TestPagesShowTheCluster while it runs: the leader's page what waits, who has which volume and what is taken by force, the other
// controller's who leads, and the node's page its volumes.
func TestPagesShowTheCluster(t *testing.T) {
	mounttest.RequireRoot(t)
	dir, err := os.MkdirTemp("", "volumekit-page-") //nolint:usetesting // It is cleaned when no device has a file in it.
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 2*stepTimeout)
	defer cancel()
	c, err := newCluster(ctx, dir, options{http: "127.0.0.1:0"}, testOutput{t})
	require.NoError(t, err)
	defer func() {
		assert.NoError(t, c.killAll())
		assert.NoError(t, clean(dir))
	}()
	require.NoError(t, c.createClaim(ctx, "waits"))
	leader, err := c.leader(ctx)
	require.NoError(t, err)

	answer := awaitCluster(ctx, t, c, leader, func(a inspect.ClusterAnswer) bool { return len(a.Claims) == 1 && len(a.Leases) > 0 })
	assert.True(t, answer.Leading)
	assert.Equal(t, "waits", answer.Claims[0].Name)
	assert.Contains(t, answer.Claims[0].Message, className)
	other := names("controller", controllerCount)[0]
	if other == leader {
		other = names("controller", controllerCount)[1]
	}
	// The controllers have one, and each agent, that of the far node too.
	answer = awaitCluster(ctx, t, c, other, func(a inspect.ClusterAnswer) bool { return len(a.Leases) == 2+nodeCount })
	assert.False(t, answer.Leading)
	assert.Equal(t, "controller", answer.Leases[0].Name)
	assert.Equal(t, leader, answer.Leases[0].Holder)

	require.NoError(t, c.createClass(ctx))
	require.NoError(t, c.createClaim(ctx, claimName))
	require.NoError(t, c.createPod(ctx, claimName, 1, "node-1"))
	require.NoError(t, c.awaitRunning(ctx, 1))
	answer = awaitCluster(ctx, t, c, leader, func(a inspect.ClusterAnswer) bool { return len(a.Claims) == 0 && len(a.Attachments) == 1 })
	assert.Equal(t, "node-1", answer.Attachments[0].Node)
	assert.Equal(t, "in use", answer.Attachments[0].Phase)
	page, err := readPage(ctx, c, "node-1", "v1/node")
	require.NoError(t, err)
	var node inspect.NodeAnswer
	require.NoError(t, json.Unmarshal(page, &node))
	require.Len(t, node.Volumes, 1)
	assert.Equal(t, podName(claimName, 1), node.Volumes[0].Pod.Name)
	assert.NotEmpty(t, node.Volumes[0].Operations, "the time line")
	page, err = readPage(ctx, c, "node-1", "")
	require.NoError(t, err)
	assert.Contains(t, string(page), podName(claimName, 1))

	// Another node has to wait, as long as it is not certain that the first one is dead.
	require.NoError(t, c.kill("node-1"))
	require.NoError(t, c.createPod(ctx, claimName, 2, "node-2"))
	answer = awaitCluster(ctx, t, c, leader, func(a inspect.ClusterAnswer) bool {
		return len(a.Attachments) == 2 && a.Attachments[0].Error != ""
	})
	assert.Equal(t, "node-2", answer.Attachments[0].Node, "what needs attention comes first")
	assert.Contains(t, answer.Attachments[0].Error, "node-1")
	require.NoError(t, c.stopAll(ctx))
}

// awaitCluster reads the page of a controller until it is as it should be.
func awaitCluster(ctx context.Context, t *testing.T, c *cluster, name string, is func(inspect.ClusterAnswer) bool) inspect.ClusterAnswer {
	t.Helper()
	var answer inspect.ClusterAnswer
	require.NoError(t, persist(ctx, func() error {
		page, err := readPage(ctx, c, name, "v1/cluster")
		if err != nil {
			return err
		}
		answer = inspect.ClusterAnswer{}
		if err := json.Unmarshal(page, &answer); err != nil {
			return err
		}
		if !is(answer) {
			return fmt.Errorf("%s shows %s", name, page)
		}
		return nil
	}))
	return answer
}

// readPage reads a page of a process, at the address that it has printed last.
func readPage(ctx context.Context, c *cluster, name, path string) ([]byte, error) {
	line, err := c.transcript.last(name + ": " + pageIsAt)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	_, address, _ := strings.Cut(line, pageIsAt)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address+path, nil)
	if err != nil {
		return nil, err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	body, err := io.ReadAll(answer.Body)
	if err = errors.Join(err, answer.Body.Close()); err != nil {
		return nil, err
	}
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s%s: %s: %s", address, path, answer.Status, body)
	}
	return body, nil
}

// TestAPlayWhosePagesHaveNoAddressSaysSo before it starts anything.
func TestAPlayWhosePagesHaveNoAddressSaysSo(t *testing.T) {
	taken, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	_, err = newCluster(t.Context(), t.TempDir(), options{http: taken.Addr().String()}, testOutput{t})
	require.ErrorContains(t, err, "-http "+taken.Addr().String())
	require.ErrorIs(t, err, syscall.EADDRINUSE)
}

func TestAddressesOfPages(t *testing.T) {
	for first, want := range map[string]string{"127.0.0.1:8080": "127.0.0.1:8083", "[::1]:0": "[::1]:0"} {
		address, err := pageAddress(first, 3)
		require.NoError(t, err)
		assert.Equal(t, want, address)
	}
	for _, wrong := range []string{"8080", "127.0.0.1:http", "127.0.0.1:70000"} {
		_, err := pageAddress(wrong, 0)
		require.ErrorContains(t, err, "-http "+wrong)
	}
}
