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

// maxRequest is how many bytes a request may have. All maps of one at their limits are a third of it.
const maxRequest = 64 << 10

// maxCalls is how many calls are served at a time on one connection; the others wait there.
const maxCalls = 256

// calls are those that are under way, so that Run can say which ones have not ended.
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

// String lists the calls that are under way.
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

// interceptor is around every call.
type interceptor struct {
	calls   *calls
	plugin  string // its name
	timeout time.Duration
	logger  *slog.Logger
}

// intercept checks the request's sizes, bounds the time, turns a panic into an error, and what the
// plugin returns into what the specification knows.
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

// guarded turns a panic into an error, and takes out of errors what only the plugin knows to be secret.
func (i *interceptor) guarded(ctx context.Context, method string, request proto.Message, handler grpc.UnaryHandler) (response any, err error) {
	defer func() {
		if value := recover(); value != nil {
			value = csispec.Secrets(request).RedactPanic(hidden(request).RedactPanic(value))
			response, err = nil, &volume.PanicError{Plugin: i.plugin, Call: method, Value: value}
			if strings.HasPrefix(method, "Create") {
				err = volume.Uncertain(err) // What was to be made may be there, and its record stays.
			}
		}
	}()
	response, err = handler(ctx, request)
	if err != nil {
		return nil, answer(err, hidden(request))
	}
	return response, nil
}

// log tells of calls that change something, and of failures.
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
