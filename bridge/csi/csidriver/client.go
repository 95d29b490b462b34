package csidriver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/volumekit/volumekit/bridge/csi/internal/csispec"
	"github.com/volumekit/volumekit/volume"
)

// client connects to one driver. It keeps one connection, and makes another after its end. It has no goroutine of its
// own: a caller connects.
type client struct {
	options    Options // complete
	dial       dialer
	connecting chan struct{}
	locks      volumeLocks
	// object is the CSIDriver; nil if there is none.
	object atomic.Pointer[storagev1.CSIDriver]
	// fixed is attachRequired of the first Init; nil before that.
	fixed atomic.Pointer[attachmentRule]

	mu      sync.Mutex
	current *session // nil before the first connection
	closed  bool
}

// dialer makes a connection to the driver of options. The first call opens it if it is not open yet.
type dialer func(options Options) (connection, error)

// connection carries the calls of a driver. A [grpc.ClientConn] is one.
type connection interface {
	grpc.ClientConnInterface
	// GetState reports whether the connection is open. If it is not, the client makes another.
	GetState() connectivity.State
	// Close ends the connection, and every call on it.
	Close() error
}

// session is one connection, with the driver's facts from it. It always stays on this connection: no call reaches a
// driver whose facts were not read.
type session struct {
	options Options
	conn    connection
	facts   facts
	locks   *volumeLocks // the client's
}

func newClient(options Options) *client {
	c := &client{options: options, dial: dialSocket, connecting: make(chan struct{}, 1)}
	c.object.Store(options.Object)
	return c
}

// session returns the connection, and makes a missing one. An error is transient: no call was begun.
func (c *client) session(ctx context.Context) (*session, error) {
	if s, err := c.alive(); s != nil || err != nil {
		return s, err
	}
	select {
	case c.connecting <- struct{}{}:
		defer func() { <-c.connecting }()
	case <-ctx.Done():
		return nil, volume.Transient(fmt.Errorf("waiting for driver %q at %q: %w", c.options.Driver, c.options.Socket, ctx.Err()))
	}
	if s, err := c.alive(); s != nil || err != nil {
		return s, err
	}
	if err := c.readObject(ctx); err != nil {
		return nil, err
	}
	s, err := connect(ctx, c.options, c.dial, &c.locks)
	if err != nil {
		return nil, volume.Transient(fmt.Errorf("driver %q at %q: %w", c.options.Driver, c.options.Socket, err))
	}
	return c.keep(s)
}

// alive returns the connection if it has not ended.
func (c *client) alive() (*session, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, volume.Transient(fmt.Errorf("driver %q: the plugin was closed", c.options.Driver))
	}
	if c.current == nil || c.current.conn.GetState() != connectivity.Ready {
		return nil, nil
	}
	return c.current, nil
}

// keep replaces the ended connection with s.
func (c *client) keep(s *session) (*session, error) {
	c.mu.Lock()
	old := c.current
	if c.closed {
		old, s = s, nil
	} else {
		c.current = s
	}
	c.mu.Unlock()
	if old != nil {
		_ = old.conn.Close() // It has ended, or no caller has used it.
	}
	if s == nil {
		return nil, volume.Transient(fmt.Errorf("driver %q: the plugin was closed", c.options.Driver))
	}
	return s, nil
}

// known returns the driver's last facts. Their connection may have ended.
func (c *client) known() facts {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.current == nil {
		return facts{}
	}
	return c.current.facts
}

// close ends the connection, and every call on it.
func (c *client) close() error {
	c.mu.Lock()
	s, closed := c.current, c.closed
	c.closed = true // The facts stay: a volume that was staged does not become one that is not.
	c.mu.Unlock()
	if s == nil || closed {
		return nil
	}
	return s.conn.Close()
}

// connect makes a connection and reads the driver's facts.
func connect(ctx context.Context, options Options, dial dialer, locks *volumeLocks) (*session, error) {
	ctx, cancel := context.WithTimeout(ctx, options.ConnectTimeout)
	defer cancel()
	conn, err := dial(options)
	if err != nil {
		return nil, err
	}
	s := &session{options: options, conn: conn, locks: locks}
	if s.facts, err = s.readFacts(ctx); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return s, nil
}

// dialSocket makes a connection over the driver's socket, which only trusted users may write to.
func dialSocket(options Options) (connection, error) {
	if err := checkSocket(options.Socket, options.Owners); err != nil {
		return nil, err
	}
	conn, err := grpc.NewClient("passthrough:///csi", dialOptions(options)...)
	if err != nil {
		return nil, err
	}
	return conn, nil
}

// errEnded says that a connection has ended. The call is not sent over another connection.
var errEnded = errors.New("the connection to the driver has ended")

func dialOptions(options Options) []grpc.DialOption {
	var dialed atomic.Bool
	dial := func(ctx context.Context, _ string) (net.Conn, error) {
		if dialed.Swap(true) {
			return nil, errEnded
		}
		return new(net.Dialer).DialContext(ctx, "unix", options.Socket)
	}
	all := []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority("localhost"),
		grpc.WithContextDialer(dial),
		grpc.WithNoProxy(),
		grpc.WithIdleTimeout(0),
		grpc.WithDisableRetry(),
		grpc.WithDisableServiceConfig(),
		grpc.WithDefaultCallOptions(
			grpc.MaxCallRecvMsgSize(options.MaxMessage),
			grpc.MaxCallSendMsgSize(options.MaxMessage),
		),
	}
	if options.Stats != nil {
		all = append(all, grpc.WithStatsHandler(withoutPayloads{options.Stats}))
	}
	return all
}

// call makes one call. It checks the request before it sends it, and the answer before it returns it. If the answer
// violates the specification, the call is uncertain.
func call[Q, A proto.Message](
	ctx context.Context, s *session, method string, do func(context.Context, Q, ...grpc.CallOption) (A, error), request Q,
) (A, error) {
	var none A
	if err := csispec.CheckSizesUpTo(request, s.options.MaxString); err != nil {
		return none, fmt.Errorf("driver %q: %s was not called: %w", s.options.Driver, method, err)
	}
	ctx, cancel := context.WithTimeout(ctx, s.options.CallTimeout)
	defer cancel()
	release, err := s.locks.acquire(ctx, changes(request))
	if err != nil {
		return none, volume.Transient(fmt.Errorf("driver %q: %s waits for an earlier call on the volume: %w", s.options.Driver, method, err))
	}
	defer release()
	answer, err := retryWhileBusy(ctx, func() (A, error) { return callOnce(ctx, s, method, do, request) })
	if err != nil {
		return none, err
	}
	if err := csispec.CheckSizesUpTo(answer, s.options.MaxString); err != nil {
		return none, s.refuse(method, fmt.Errorf("%w (Options.MaxString allows longer strings)", err))
	}
	return answer, nil
}

func callOnce[Q, A proto.Message](
	ctx context.Context, s *session, method string, do func(context.Context, Q, ...grpc.CallOption) (A, error), request Q,
) (A, error) {
	sent, cancel := ctx, context.CancelFunc(func() {})
	if changes(request) != "" {
		sent, cancel = withGrace(ctx, s.options.Grace)
	}
	defer cancel()
	answer, err := do(sent, request)
	s.options.Logger.DebugContext(ctx, "call of a CSI driver", "driver", s.options.Driver, "method", method,
		"request", csispec.Stripped{Message: request}, "answer", csispec.Stripped{Message: answer}, "failed", err != nil)
	if err != nil {
		return answer, newCallError(ctx, s.options.Driver, method, err, csispec.Secrets(request))
	}
	return answer, nil
}

// withGrace returns a context with the values of ctx that ends some time after it. A driver may still begin a call
// after its caller has cancelled it. The next call for the volume waits until this call or that time has ended: the
// driver cannot get them in the wrong order.
func withGrace(ctx context.Context, grace time.Duration) (context.Context, context.CancelFunc) {
	deadline, _ := ctx.Deadline() // Options.CallTimeout gives each call one.
	longer, cancel := context.WithDeadline(context.WithoutCancel(ctx), deadline.Add(grace))
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(grace, cancel) })
	return longer, func() { stop(); cancel() }
}

// refuse returns the error of a call with an effect and an invalid answer.
func (s *session) refuse(method string, err error) error {
	return volume.Uncertain(fmt.Errorf("driver %q: the answer to %s cannot be used: %w", s.options.Driver, method, err))
}
