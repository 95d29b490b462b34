//go:build kubeapiserver

package servertest

import (
	"bytes"
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
	"k8s.io/client-go/rest"
)

// Cluster is an etcd and a kube-apiserver.
type Cluster struct {
	t      *testing.T
	dir    string
	etcd   string // its URL
	port   int
	server *exec.Cmd
}

// Start starts a cluster that ends with the test. It fails the test unless KUBE_BINARIES names a directory with the two programs.
func Start(t *testing.T) *Cluster {
	t.Helper()
	require.NotEmpty(t, os.Getenv("KUBE_BINARIES"), "run make test-kube")
	c := &Cluster{t: t, dir: t.TempDir(), etcd: fmt.Sprintf("http://127.0.0.1:%d", freePort(t)), port: freePort(t)}
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
func (c *Cluster) run(program, log string, arguments ...string) *exec.Cmd {
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
func (c *Cluster) start() {
	c.t.Helper()
	key := filepath.Join(c.dir, "key.pem")
	c.server = c.run("kube-apiserver", "apiserver.log",
		"--etcd-servers="+c.etcd, "--bind-address=127.0.0.1", "--secure-port="+strconv.Itoa(c.port), "--cert-dir="+filepath.Join(c.dir, "certs"),
		"--token-auth-file="+filepath.Join(c.dir, "tokens.csv"), "--authorization-mode=RBAC",
		"--allow-privileged", // as clusters do: drivers mount
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file="+key, "--service-account-signing-key-file="+key,
		"--service-cluster-ip-range=10.0.0.0/24", "--endpoint-reconciler-type=none",
		// No controller makes the namespaces, service accounts and taints that these wait for.
		"--disable-admission-plugins=ServiceAccount,NamespaceLifecycle,StorageObjectInUseProtection,TaintNodesByCondition")
	client, err := rest.HTTPClientFor(c.Config("admin"))
	require.NoError(c.t, err)
	for end := time.Now().Add(3 * time.Minute); ; {
		request, err := http.NewRequestWithContext(c.t.Context(), http.MethodGet, c.Config("admin").Host+"/readyz", nil)
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

// Restart ends the API server as a crash does, and starts it again.
func (c *Cluster) Restart() {
	c.t.Helper()
	stop(c.server)
	c.start()
}

// Compact has etcd forget what was, and the API server what it remembers of it.
func (c *Cluster) Compact() {
	c.t.Helper()
	body := c.ask("/v3/kv/put", map[string]any{"key": base64.StdEncoding.EncodeToString([]byte("another-write"))})
	c.ask("/v3/kv/compaction", map[string]any{"revision": body.Header.Revision, "physical": true})
	c.Restart()
}

type etcdAnswer struct {
	Header struct {
		Revision string `json:"revision"`
	} `json:"header"`
}

func (c *Cluster) ask(path string, question any) etcdAnswer {
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

// Config returns what a client needs to speak to the server with a token: "admin" may everything, "nobody" nothing.
func (c *Cluster) Config(token string) *rest.Config {
	return &rest.Config{
		Host: "https://127.0.0.1:" + strconv.Itoa(c.port), BearerToken: token,
		TLSClientConfig: rest.TLSClientConfig{Insecure: true},
		ContentConfig:   rest.ContentConfig{ContentType: "application/vnd.kubernetes.protobuf"},
		QPS:             -1,
	}
}

func (c *Cluster) write(name string, content []byte) {
	c.t.Helper()
	require.NoError(c.t, os.WriteFile(filepath.Join(c.dir, name), content, 0o600))
}

// writeKey writes the key for the tokens of service accounts, of which there are none.
func (c *Cluster) writeKey() {
	c.t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(c.t, err)
	c.write("key.pem", pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}))
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}
