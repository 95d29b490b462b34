//go:build kubeapiserver

package snapshottest

import (
	"bytes"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	groupclient "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned/typed/volumegroupsnapshot/v1"
	snapshotclient "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned/typed/volumesnapshot/v1"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/volumekit/volumekit/bridge/kube/internal/servertest"
	"github.com/volumekit/volumekit/store"
)

// TestAPIServer runs the rows on a real kube-apiserver, with the CRDs of the module that has the types. `make test-kube` builds the
// server and etcd into the directory that KUBE_BINARIES names.
func TestAPIServer(t *testing.T) {
	c := servertest.Start(t)
	installCRDs(t, c.Config("admin"))
	config := c.Config("admin")
	clients, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	config = c.Config("admin")
	config.ContentType = "application/json" // Custom resources have no protobuf.
	snapshots, err := snapshotclient.NewForConfig(config)
	require.NoError(t, err)
	groups, err := groupclient.NewForConfig(config)
	require.NoError(t, err)
	s := newStore(t, clients, snapshots, groups)
	testRows(t, func(t *testing.T) store.Store {
		t.Helper()
		clean(t, s)
		return s
	})
}

// installCRDs installs the CRDs of the module that has the types, and waits until they are served.
func installCRDs(t *testing.T, config *rest.Config) {
	t.Helper()
	client, err := rest.HTTPClientFor(config)
	require.NoError(t, err)
	ask := func(method, path string, body io.Reader) (int, string) {
		request, err := http.NewRequestWithContext(t.Context(), method, config.Host+path, body)
		require.NoError(t, err)
		request.Header.Set("Content-Type", "application/yaml")
		response, err := client.Do(request)
		require.NoError(t, err)
		defer response.Body.Close()
		answer, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		return response.StatusCode, string(answer)
	}
	for _, file := range crds(t) {
		content, err := os.ReadFile(file)
		require.NoError(t, err)
		status, answer := ask(http.MethodPost, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", bytes.NewReader(content))
		require.Equal(t, http.StatusCreated, status, "%s: %s", file, answer)
		group, plural, _ := strings.Cut(strings.TrimSuffix(filepath.Base(file), ".yaml"), "_")
		for end := time.Now().Add(patience); ; {
			if status, answer = ask(http.MethodGet, "/apis/"+group+"/v1/"+plural, nil); status == http.StatusOK {
				break
			}
			require.False(t, time.Now().After(end), "%s is not served: %s", file, answer)
			select {
			case <-time.After(50 * time.Millisecond):
			case <-t.Context().Done():
			}
		}
	}
}

// crds returns the files of the CRDs, which are where Go keeps the module.
func crds(t *testing.T) []string {
	t.Helper()
	const module = "github.com/kubernetes-csi/external-snapshotter/client/v8"
	dir, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	require.NoError(t, err)
	files, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(dir)), "config", "crd", "*.k8s.io_*.yaml"))
	require.NoError(t, err)
	require.Len(t, files, 6)
	return files
}

// clean takes away what an earlier row left.
func clean(t *testing.T, s store.Store) {
	t.Helper()
	for _, kind := range store.KindsOf(s).Kinds() {
		all, err := s.List(t.Context(), kind, "")
		require.NoError(t, err)
		for _, item := range all.Items {
			remove(t, s, item.(store.Object))
		}
	}
}

func remove(t *testing.T, s store.Store, obj store.Object) {
	t.Helper()
	if obj.GetNamespace() == "kube-system" {
		return
	}
	if len(obj.GetFinalizers()) > 0 {
		obj.SetFinalizers(nil)
		_, err := s.Update(t.Context(), obj)
		require.NoError(t, err)
	}
	key, err := store.KindsOf(s).KeyOf(obj)
	require.NoError(t, err)
	if err := s.Delete(t.Context(), key, store.Preconditions{}); err != nil {
		require.ErrorIs(t, err, store.ErrNotFound)
	}
}
