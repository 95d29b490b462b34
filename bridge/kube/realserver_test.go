//go:build kubeapiserver

package kube_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/volumekit/volumekit/bridge/kube"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/store/storetest"
)

// TestAPIServer holds the store on a real kube-apiserver to all that the one on client-go's fake is held to. `make test-kube` builds the
// server and etcd into the directory that KUBE_BINARIES names.
func TestAPIServer(t *testing.T) {
	c := startCluster(t)
	s := c.store("admin")
	storetest.Run(t, storetest.Config{
		New: func(t *testing.T) store.Store {
			t.Helper()
			c.clean(t)
			return s
		},
		Compact: func(t *testing.T, _ store.Store) {
			t.Helper()
			c.compact()
		},
	})
	for _, c := range suite() {
		t.Run(c.name, func(t *testing.T) { c.run(t, s) })
	}
	t.Run("WithInformers", func(t *testing.T) {
		informed := newInformedStore(t, c.clients("admin"))
		storetest.Run(t, storetest.Config{New: func(t *testing.T) store.Store {
			t.Helper()
			c.clean(t)
			return informed
		}})
		c.clean(t)
		for _, c := range suite() {
			t.Run(c.name, func(t *testing.T) { c.run(t, informed) })
		}
	})
	t.Run("WithoutARoleEverythingIsDenied", func(t *testing.T) { testDenied(t, c.store("nobody")) })
	t.Run("WithoutCredentialsEverythingIsDenied", func(t *testing.T) { testDenied(t, c.store("unknown")) })
	t.Run("AnAgentSeesItsOwn", func(t *testing.T) {
		c.clean(t)
		testOnly(t, c.clients("admin"))
	})
	t.Run("WhatTheServerValidates", func(t *testing.T) {
		c.clean(t)
		testValidation(t, s)
	})
	t.Run("AWatchGoesOnWhenTheServerHasRestarted", func(t *testing.T) {
		c.clean(t)
		events := watchVolumes(t, s)
		createVolume(t, s, "before")
		requireEvent(t, events, store.Added, "before")
		c.restart()
		createVolume(t, s, "after")
		requireEvent(t, events, store.Added, "after")
	})
}

// testOnly gives an agent its own node and its own pods.
func testOnly(t *testing.T, clients kubernetes.Interface) {
	s, err := kube.New(clients, kube.Options{Only: map[schema.GroupVersionKind]fields.Selector{
		store.Nodes: fields.OneTermEqualSelector("metadata.name", "node-1"),
		store.Pods:  fields.OneTermEqualSelector("spec.nodeName", "node-1"),
	}})
	require.NoError(t, err)
	list, err := s.List(t.Context(), store.Pods, "")
	require.NoError(t, err)
	events, err := s.Watch(t.Context(), store.Pods, "", list.ResourceVersion)
	require.NoError(t, err)
	for _, node := range []string{"node-2", "node-1"} {
		_, err = s.Create(t.Context(), &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}})
		require.NoError(t, err)
		_, err = s.Create(t.Context(), newPod("pod-on-"+node, node, ""))
		require.NoError(t, err)
	}
	require.Equal(t, "pod-on-node-1", (<-events).Object.(*v1.Pod).Name)
	nodes, _, err := store.ListOf[*v1.Node](t.Context(), s, "")
	require.NoError(t, err)
	require.Len(t, nodes, 1)
}

// testValidation writes what only Kubernetes itself refuses.
func testValidation(t *testing.T, s store.Store) {
	pv := newVolume("validated")
	pv.Spec.AccessModes = nil
	_, err := s.Create(t.Context(), pv)
	require.ErrorIs(t, err, store.ErrInvalid)
	pv = createVolume(t, s, "validated")
	pv.Spec.HostPath.Path = "/elsewhere"
	_, err = s.Update(t.Context(), pv)
	require.ErrorIs(t, err, store.ErrInvalid)
}

// testDenied asks for everything as somebody who may nothing.
func testDenied(t *testing.T, s store.Store) {
	key := store.Key{Kind: store.PersistentVolumes, Name: "disk"}
	_, err := s.Get(t.Context(), key)
	require.ErrorIs(t, err, kube.ErrDenied)
	_, err = s.Create(t.Context(), newVolume("disk"))
	require.ErrorIs(t, err, kube.ErrDenied)
	require.ErrorIs(t, s.Delete(t.Context(), key, store.Preconditions{}), kube.ErrDenied)
	_, err = s.List(t.Context(), store.PersistentVolumes, "")
	require.ErrorIs(t, err, kube.ErrDenied)
	_, err = s.Watch(t.Context(), store.PersistentVolumes, "", "1")
	require.ErrorIs(t, err, kube.ErrDenied)
}

// cluster is an etcd and a kube-apiserver.
type cluster struct {
	t      *testing.T
	dir    string
	etcd   string // its URL
	port   int
	server *exec.Cmd
}

func startCluster(t *testing.T) *cluster {
	t.Helper()
	require.NotEmpty(t, os.Getenv("KUBE_BINARIES"), "run make test-kube")
	c := &cluster{t: t, dir: t.TempDir(), etcd: fmt.Sprintf("http://127.0.0.1:%d", freePort(t)), port: freePort(t)}
	peers := fmt.Sprintf("http://127.0.0.1:%d", freePort(t))
	c.run("server", "etcd.log",
		"--data-dir="+filepath.Join(c.dir, "etcd"), "--unsafe-no-fsync", "--log-level=warn",
		"--listen-client-urls="+c.etcd, "--advertise-client-urls="+c.etcd,
		"--listen-peer-urls="+peers, "--initial-advertise-peer-urls="+peers, "--initial-cluster=default="+peers)
	c.writeKey()
	c.write("tokens.csv", []byte("admin,admin,1,system:masters\nnobody,nobody,2\n"))
	c.start()
	return c
}

// run starts one of the programs; it ends with the test.
func (c *cluster) run(program, log string, arguments ...string) *exec.Cmd {
	c.t.Helper()
	out, err := os.OpenFile(filepath.Join(c.dir, log), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	require.NoError(c.t, err)
	defer out.Close()
	cmd := exec.Command(filepath.Join(os.Getenv("KUBE_BINARIES"), program), arguments...)
	cmd.Stdout, cmd.Stderr = out, out
	require.NoError(c.t, cmd.Start())
	c.t.Cleanup(func() { stop(cmd) })
	return cmd
}

func stop(cmd *exec.Cmd) {
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}

// start starts the API server and waits until it serves.
func (c *cluster) start() {
	c.t.Helper()
	key := filepath.Join(c.dir, "key.pem")
	c.server = c.run("kube-apiserver", "apiserver.log",
		"--etcd-servers="+c.etcd, "--bind-address=127.0.0.1", "--secure-port="+strconv.Itoa(c.port), "--cert-dir="+filepath.Join(c.dir, "certs"),
		"--token-auth-file="+filepath.Join(c.dir, "tokens.csv"), "--authorization-mode=RBAC",
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file="+key, "--service-account-signing-key-file="+key,
		"--service-cluster-ip-range=10.0.0.0/24", "--endpoint-reconciler-type=none",
		// Nobody makes the namespaces, service accounts and taints that these wait for.
		"--disable-admission-plugins=ServiceAccount,NamespaceLifecycle,StorageObjectInUseProtection,TaintNodesByCondition")
	client, err := rest.HTTPClientFor(c.config("admin"))
	require.NoError(c.t, err)
	for end := time.Now().Add(3 * time.Minute); ; {
		request, err := http.NewRequestWithContext(c.t.Context(), http.MethodGet, c.config("admin").Host+"/readyz", nil)
		require.NoError(c.t, err)
		response, err := client.Do(request)
		if err == nil {
			_ = response.Body.Close()
		}
		if err == nil && response.StatusCode == http.StatusOK {
			return
		}
		if time.Now().After(end) {
			log, _ := os.ReadFile(filepath.Join(c.dir, "apiserver.log"))
			c.t.Fatalf("the API server does not become ready:\n%s", log[max(0, len(log)-8000):])
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-c.t.Context().Done():
		}
	}
}

// restart ends the API server as a crash does, and starts it again.
func (c *cluster) restart() {
	c.t.Helper()
	stop(c.server)
	c.start()
}

// compact has etcd forget what was, and the API server what it remembers of it.
func (c *cluster) compact() {
	c.t.Helper()
	body := c.ask("/v3/kv/put", map[string]any{"key": base64.StdEncoding.EncodeToString([]byte("another-write"))})
	c.ask("/v3/kv/compaction", map[string]any{"revision": body.Header.Revision, "physical": true})
	c.restart()
}

type etcdAnswer struct {
	Header struct {
		Revision string `json:"revision"`
	} `json:"header"`
}

func (c *cluster) ask(path string, question any) etcdAnswer {
	c.t.Helper()
	content, err := json.Marshal(question)
	require.NoError(c.t, err)
	request, err := http.NewRequestWithContext(c.t.Context(), http.MethodPost, c.etcd+path, bytes.NewReader(content))
	require.NoError(c.t, err)
	response, err := http.DefaultClient.Do(request)
	require.NoError(c.t, err)
	defer response.Body.Close()
	require.Equal(c.t, http.StatusOK, response.StatusCode)
	var told etcdAnswer
	require.NoError(c.t, json.NewDecoder(response.Body).Decode(&told))
	return told
}

func (c *cluster) config(token string) *rest.Config {
	return &rest.Config{
		Host: "https://127.0.0.1:" + strconv.Itoa(c.port), BearerToken: token,
		TLSClientConfig: rest.TLSClientConfig{Insecure: true},
		ContentConfig:   rest.ContentConfig{ContentType: "application/vnd.kubernetes.protobuf"},
		QPS:             -1,
	}
}

func (c *cluster) clients(token string) *kubernetes.Clientset {
	c.t.Helper()
	clients, err := kubernetes.NewForConfig(c.config(token))
	require.NoError(c.t, err)
	return clients
}

func (c *cluster) store(token string) *kube.Store {
	c.t.Helper()
	s, err := kube.New(c.clients(token), kube.Options{})
	require.NoError(c.t, err)
	return s
}

// clean takes away what the tests have made.
func (c *cluster) clean(t *testing.T) {
	t.Helper()
	clients, now := c.clients("admin"), metav1.NewDeleteOptions(0)
	s := c.store("admin")
	for _, kind := range store.Kinds() {
		list, err := s.List(t.Context(), kind, "")
		require.NoError(t, err)
		for _, item := range list.Items {
			obj := item.(store.Object)
			if obj.GetNamespace() == metav1.NamespaceSystem {
				continue
			}
			if len(obj.GetFinalizers()) > 0 {
				obj.SetFinalizers(nil)
				_, err := s.Update(t.Context(), obj)
				require.NoError(t, err)
			}
			if _, isPod := obj.(*v1.Pod); isPod {
				require.NoError(t, clients.CoreV1().Pods(obj.GetNamespace()).Delete(t.Context(), obj.GetName(), *now))
				continue
			}
			key, err := store.KeyOf(obj)
			require.NoError(t, err)
			if err := s.Delete(t.Context(), key, store.Preconditions{}); err != nil {
				require.ErrorIs(t, err, store.ErrNotFound)
			}
		}
	}
}

func (c *cluster) write(name string, content []byte) {
	c.t.Helper()
	require.NoError(c.t, os.WriteFile(filepath.Join(c.dir, name), content, 0o600))
}

// writeKey writes the key for the tokens of service accounts, of which there are none.
func (c *cluster) writeKey() {
	c.t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(c.t, err)
	c.write("key.pem", pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}))
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}
