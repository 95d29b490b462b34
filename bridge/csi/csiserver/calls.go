package csiserver

import (
	"context"
	"fmt"
	"log/slog"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/volumekit/volumekit/bridge/csi/internal/csispec"
	"github.com/volumekit/volumekit/volume"
)

// maxRequest is the largest size of a request in bytes. All maps of one request, at their limits, take a third of it.
const maxRequest = 64 << 10

// maxCalls is the number of concurrent calls on one connection. Further calls wait in gRPC.
const maxCalls = 256

// calls are the running calls. Run names those that have not ended.
type calls struct {
	mu      sync.Mutex
	running map[string]int
	all     sync.WaitGroup
}

func (c *calls) begin(method string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running == nil {
		c.running = map[string]int{}
	}
	c.running[method]++
	c.all.Add(1)
}

func (c *calls) end(method string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running[method]--
	if c.running[method] == 0 {
		delete(c.running, method)
	}
	c.all.Done()
}

// String lists the running calls.
func (c *calls) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var names []string
	for method, n := range c.running {
		names = append(names, fmt.Sprintf("%s (%d)", method, n))
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// interceptor wraps every call.
type interceptor struct {
	calls   *calls
	plugin  string // its name
	timeout time.Duration
	logger  *slog.Logger
}

// intercept checks the sizes of the request and bounds the call's time. It turns a panic into an error, and errors of
// the plugin into errors of the specification.
func (i *interceptor) intercept(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	method := path.Base(info.FullMethod)
	i.calls.begin(method)
	defer i.calls.end(method)
	message, ok := request.(proto.Message)
	if !ok {
		return nil, status.Errorf(codes.Internal, "%s: the request is no message", method)
	}
	secrets := csispec.Secrets(message)
	if err := csispec.CheckSizes(message); err != nil {
		return nil, answer(err, secrets)
	}
	ctx, cancel := context.WithTimeout(ctx, i.timeout)
	defer cancel()
	began := time.Now()
	response, err := i.guarded(ctx, method, message, handler)
	err = answer(err, secrets)
	i.log(ctx, method, message, time.Since(began), err)
	return response, err
}

// guarded turns a panic into an error, and removes from errors the values that only the plugin knows to be secret.
func (i *interceptor) guarded(ctx context.Context, method string, request proto.Message, handler grpc.UnaryHandler) (response any, err error) {
	defer func() {
		if value := recover(); value != nil {
			value = csispec.Secrets(request).RedactPanic(hidden(request).RedactPanic(value))
			response, err = nil, &volume.PanicError{Plugin: i.plugin, Call: method, Value: value}
			if strings.HasPrefix(method, "Create") {
				err = volume.Uncertain(err) // The object may exist, and its record stays.
			}
		}
	}()
	response, err = handler(ctx, request)
	if err != nil {
		return nil, answer(err, hidden(request))
	}
	return response, nil
}

// log logs failures, and calls that change something.
func (i *interceptor) log(ctx context.Context, method string, request proto.Message, took time.Duration, err error) {
	level := slog.LevelInfo
	switch {
	case err != nil:
		level = slog.LevelWarn
	case strings.Contains(method, "Get") || method == "Probe" || strings.HasPrefix(method, "List") || strings.HasPrefix(method, "Validate"):
		level = slog.LevelDebug
	}
	attributes := []slog.Attr{slog.String("call", method), slog.Duration("took", took)}
	if r, ok := request.(interface{ GetVolumeId() string }); ok {
		attributes = append(attributes, slog.String("volume", r.GetVolumeId()))
	}
	if r, ok := request.(interface{ GetSnapshotId() string }); ok {
		attributes = append(attributes, slog.String("snapshot", r.GetSnapshotId()))
	}
	if r, ok := request.(interface{ GetGroupSnapshotId() string }); ok {
		attributes = append(attributes, slog.String("group", r.GetGroupSnapshotId()))
	}
	if r, ok := request.(interface{ GetName() string }); ok {
		attributes = append(attributes, slog.String("name", r.GetName()))
	}
	if err != nil {
		attributes = append(attributes, slog.Any("error", err))
	}
	i.logger.LogAttrs(ctx, level, "csi", attributes...)
}
