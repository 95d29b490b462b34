package etcd_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/volumekit/volumekit/bridge/etcd"
)

// cluster is a real etcd of three members, which talk to each other through gates.
type cluster struct {
	t       *testing.T
	dir     string
	quota   int64 // in bytes; 0 is etcd's default
	members []*member
}

// member is one of them. It is stopped and started; its address and its directory stay.
type member struct {
	name   string
	client *url.URL
	peer   *url.URL // where it listens
	gate   *gate    // where its peers find it
	server *embed.Etcd
}

const memberCount = 3

// newCluster starts a cluster that ends with the test.
func newCluster(t *testing.T) *cluster {
	t.Helper()
	return newClusterOf(t, 0)
}

// newClusterOf starts a cluster that is full with so many bytes.
func newClusterOf(t *testing.T, quota int64) *cluster {
	t.Helper()
	c := &cluster{t: t, dir: t.TempDir(), quota: quota}
	for i := range memberCount {
		m := &member{name: fmt.Sprintf("member-%d", i), client: freeAddress(t), peer: freeAddress(t)}
		m.gate = newGate(t, m.peer)
		c.members = append(c.members, m)
	}
	c.start(0, 1, 2)
	t.Cleanup(func() { c.stop(0, 1, 2) })
	return c
}

// start starts members and waits until they serve.
func (c *cluster) start(members ...int) {
	c.t.Helper()
	for _, i := range members {
		server, err := embed.StartEtcd(c.config(c.members[i]))
		require.NoError(c.t, err)
		c.members[i].server = server
	}
	for _, i := range members {
		select {
		case <-c.members[i].server.Server.ReadyNotify():
		case <-time.After(time.Minute):
			c.t.Fatalf("%s does not become ready", c.members[i].name)
		}
	}
}

func (c *cluster) stop(members ...int) {
	var closing sync.WaitGroup
	for _, i := range members {
		if server := c.members[i].server; server != nil {
			closing.Go(server.Close)
			c.members[i].server = nil
		}
	}
	closing.Wait()
}

func (c *cluster) config(m *member) *embed.Config {
	config := embed.NewConfig()
	config.Name, config.Dir = m.name, filepath.Join(c.dir, m.name)
	config.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	config.ListenClientUrls, config.AdvertiseClientUrls = []url.URL{*m.client}, []url.URL{*m.client}
	config.ListenPeerUrls, config.AdvertisePeerUrls = []url.URL{*m.peer}, []url.URL{*m.gate.url}
	config.TickMs, config.ElectionMs = 50, 500
	config.QuotaBackendBytes = c.quota
	config.UnsafeNoFsync = true // What a power cut does to etcd is not our subject.
	var all []string
	for _, other := range c.members {
		all = append(all, other.name+"="+other.gate.url.String())
	}
	config.InitialCluster = strings.Join(all, ",")
	return config
}

// leader returns which member leads, as soon as one does.
func (c *cluster) leader() int {
	c.t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); pause(c.t.Context(), 20*time.Millisecond) {
		for i, m := range c.members {
			if m.server != nil && m.server.Server.Leader() == m.server.Server.MemberID() {
				return i
			}
		}
	}
	c.t.Fatal("no member leads")
	return 0
}

// part cuts a member off from the others, both ways, or joins it with them again.
func (c *cluster) part(i int) {
	id := c.members[i].server.Server.MemberID().String()
	for j, m := range c.members {
		if j == i {
			m.gate.shut("")
		} else {
			m.gate.shut(id)
		}
	}
}

func (c *cluster) join() {
	for _, m := range c.members {
		m.gate.open()
	}
}

// clientOf returns a client that knows some members; of none: all.
func (c *cluster) clientOf(members ...int) *clientv3.Client {
	c.t.Helper()
	return c.dial(nil, members...)
}

// dial returns a client with options of its own.
func (c *cluster) dial(options []grpc.DialOption, members ...int) *clientv3.Client {
	c.t.Helper()
	if len(members) == 0 {
		members = []int{0, 1, 2}
	}
	var endpoints []string
	for _, i := range members {
		endpoints = append(endpoints, c.members[i].client.String())
	}
	client, err := clientv3.New(clientv3.Config{
		Endpoints: endpoints, Logger: zap.NewNop(), DialTimeout: 5 * time.Second, DialOptions: options,
		DialKeepAliveTime: time.Second, DialKeepAliveTimeout: time.Second,
	})
	require.NoError(c.t, err)
	c.t.Cleanup(func() { _ = client.Close() })
	return client
}

// store returns a store of its own in the cluster.
func (c *cluster) store(client *clientv3.Client, prefix string) *etcd.Store {
	c.t.Helper()
	s, err := etcd.New(client, etcd.Options{Prefix: prefix})
	require.NoError(c.t, err)
	return s
}

// addresses counts the addresses of this process.
var addresses atomic.Uint32

// freeAddress returns an address where a member listens, again after it was stopped. Each address has an IP of its own:
// a port of 127.0.0.1 on which no program listens can become the port of a connection at any time.
func freeAddress(t testing.TB) *url.URL {
	t.Helper()
	process := os.Getpid()
	ip := net.IPv4(127, byte(1+addresses.Add(1)%254), byte(process>>8), byte(process))
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", net.JoinHostPort(ip.String(), "0"))
	require.NoError(t, err)
	defer l.Close()
	return &url.URL{Scheme: "http", Host: l.Addr().String()}
}

// gate lets the peers of a member through to it, or some of them not. Each of their requests says who it is from.
type gate struct {
	url   *url.URL
	proxy *httputil.ReverseProxy

	mu     sync.Mutex
	closed bool
	from   string                               // whom it is closed to; empty for all
	passed map[*http.Request]context.CancelFunc // requests that go on for long
}

func newGate(t *testing.T, to *url.URL) *gate {
	t.Helper()
	g := &gate{proxy: httputil.NewSingleHostReverseProxy(to), passed: map[*http.Request]context.CancelFunc{}}
	g.proxy.FlushInterval = -1
	g.proxy.ErrorHandler = func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) }
	server := httptest.NewUnstartedServer(g)
	server.Config.ErrorLog = nil
	server.Start()
	t.Cleanup(func() {
		g.shut("")
		server.CloseClientConnections()
		server.Close()
	})
	var err error
	g.url, err = url.Parse(server.URL)
	require.NoError(t, err)
	return g
}

// ServeHTTP implements http.Handler.
func (g *gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	g.mu.Lock()
	shut := g.closed && (g.from == "" || g.from == r.Header.Get("X-Server-From"))
	g.passed[r] = cancel
	g.mu.Unlock()
	defer func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		delete(g.passed, r)
	}()
	if shut {
		panic(http.ErrAbortHandler)
	}
	g.proxy.ServeHTTP(w, r.WithContext(ctx))
}

// shut closes the gate to a member, and ends its requests.
func (g *gate) shut(from string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed, g.from = true, from
	for r, cancel := range g.passed {
		if from == "" || from == r.Header.Get("X-Server-From") {
			cancel()
		}
	}
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = false
}

// pause waits for d or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
