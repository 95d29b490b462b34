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

// link is the way to one driver. It keeps one connection, and makes another when that has ended. It has no goroutine of its own:
// who calls connects.
type link struct {
	options Options // complete
	dial    dialer
	turn    chan struct{}
	volumes turns
	// object is the CSIDriver; nil where there is none.
	object atomic.Pointer[storagev1.CSIDriver]

	mu      sync.Mutex
	current *session // nil before the first, and once closed
	closed  bool
}

// dialer makes a connection to the driver of options. It need not be open yet: the first call opens it.
type dialer func(options Options) (connection, error)

// connection carries the calls of a driver. A [grpc.ClientConn] is one.
type connection interface {
	grpc.ClientConnInterface
	// GetState says whether the connection is open: when it is not, another one is made.
	GetState() connectivity.State
	// Close ends the connection, and every call on it.
	Close() error
}

// session is one connection, with what the driver answered on it. It never becomes another connection, so that no call reaches a
// driver that was not asked.
type session struct {
	options Options
	conn    connection
	facts   facts
	volumes *turns // those of the link
}

func newLink(options Options) *link {
	l := &link{options: options, dial: dialSocket, turn: make(chan struct{}, 1)}
	l.object.Store(options.Object)
	return l
}

// session returns the connection, after it has made one where there is none. An error is transient: nothing was begun.
func (l *link) session(ctx context.Context) (*session, error) {
	if s, err := l.alive(); s != nil || err != nil {
		return s, err
	}
	select {
	case l.turn <- struct{}{}:
		defer func() { <-l.turn }()
	case <-ctx.Done():
		return nil, volume.Transient(fmt.Errorf("waiting for driver %q at %q: %w", l.options.Driver, l.options.Socket, ctx.Err()))
	}
	if s, err := l.alive(); s != nil || err != nil {
		return s, err
	}
	if err := l.readObject(ctx); err != nil {
		return nil, err
	}
	s, err := connect(ctx, l.options, l.dial, &l.volumes)
	if err != nil {
		return nil, volume.Transient(fmt.Errorf("driver %q at %q: %w", l.options.Driver, l.options.Socket, err))
	}
	return l.keep(s)
}

// alive returns the connection if it has not ended.
func (l *link) alive() (*session, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, volume.Transient(fmt.Errorf("driver %q: the plugin was closed", l.options.Driver))
	}
	if l.current == nil || l.current.conn.GetState() != connectivity.Ready {
		return nil, nil
	}
	return l.current, nil
}

// keep puts s in the place of the connection that has ended.
func (l *link) keep(s *session) (*session, error) {
	l.mu.Lock()
	old := l.current
	if l.closed {
		old, s = s, nil
	} else {
		l.current = s
	}
	l.mu.Unlock()
	if old != nil {
		_ = old.conn.Close() // It has ended, or nobody has seen it.
	}
	if s == nil {
		return nil, volume.Transient(fmt.Errorf("driver %q: the plugin was closed", l.options.Driver))
	}
	return s, nil
}

// known returns what the driver answered last, on a connection that may have ended.
func (l *link) known() facts {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.current == nil {
		return facts{}
	}
	return l.current.facts
}

// close ends the connection, and every call on it.
func (l *link) close() error {
	l.mu.Lock()
	s := l.current
	l.current, l.closed = nil, true
	l.mu.Unlock()
	if s == nil {
		return nil
	}
	return s.conn.Close()
}

// connect makes a connection and asks the driver who it is and what it can do.
func connect(ctx context.Context, options Options, dial dialer, volumes *turns) (*session, error) {
	ctx, cancel := context.WithTimeout(ctx, options.ConnectTimeout)
	defer cancel()
	conn, err := dial(options)
	if err != nil {
		return nil, err
	}
	s := &session{options: options, conn: conn, volumes: volumes}
	if s.facts, err = s.ask(ctx); err != nil {
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

// errEnded says that a connection has ended, and that nothing is sent over another one in its place.
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

// call makes one call. The request is checked before anything is sent, and the answer before it is believed: one that the
// specification does not allow leaves the call uncertain.
func call[Q, A proto.Message](
	ctx context.Context, s *session, method string, do func(context.Context, Q, ...grpc.CallOption) (A, error), request Q,
) (A, error) {
	var none A
	if err := csispec.CheckSizesUpTo(request, s.options.MaxString); err != nil {
		return none, fmt.Errorf("driver %q: %s was not called: %w", s.options.Driver, method, err)
	}
	ctx, cancel := context.WithTimeout(ctx, s.options.CallTimeout)
	defer cancel()
	release, err := s.volumes.take(ctx, changes(request))
	if err != nil {
		return none, volume.Transient(fmt.Errorf("driver %q: %s waits for an earlier call on the volume: %w", s.options.Driver, method, err))
	}
	defer release()
	answer, err := untilIdle(ctx, func() (A, error) { return callOnce(ctx, s, method, do, request) })
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
		sent, cancel = outlasting(ctx, s.options.Grace)
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

// outlasting returns a context with the values of ctx that ends a grace after it. A driver may still begin a call after its caller has
// cancelled it. Until the call has ended or the grace is over, the next call for the volume waits, so that the two cannot change places.
func outlasting(ctx context.Context, grace time.Duration) (context.Context, context.CancelFunc) {
	deadline, _ := ctx.Deadline() // Options.CallTimeout gives each call one.
	longer, cancel := context.WithDeadline(context.WithoutCancel(ctx), deadline.Add(grace))
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(grace, cancel) })
	return longer, func() { stop(); cancel() }
}

// refuse returns the error of a call that had its effect, with an answer that cannot be believed.
func (s *session) refuse(method string, err error) error {
	return volume.Uncertain(fmt.Errorf("driver %q: the answer to %s cannot be used: %w", s.options.Driver, method, err))
}
