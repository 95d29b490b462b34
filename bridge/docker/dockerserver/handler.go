package dockerserver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/volumekit/volumekit/bridge/docker/internal/protocol"
	"github.com/volumekit/volumekit/volume"
)

const (
	// maxRequest is the largest size of a request in bytes.
	maxRequest = 64 << 10
	// maxCalls is the number of concurrent calls.
	maxCalls = 64
	// maxError is the largest shown length of an error in bytes.
	maxError = 2 << 10
)

var errTooManyCalls = fmt.Errorf("too many calls at once: try again: %w", volume.ErrTransient)

// service wraps every call.
type service struct {
	timeout time.Duration
	logger  *slog.Logger
	free    chan struct{} // has an element for each running call
}

// newHandler returns the handler of the protocol's calls.
func newHandler(v *volumes, o Options, logger *slog.Logger) http.Handler {
	s := &service{timeout: o.CallTimeout, logger: logger, free: make(chan struct{}, maxCalls)}
	mux := http.NewServeMux()
	serve(mux, s, protocol.Activate, activate)
	serve(mux, s, protocol.Create, v.create)
	serve(mux, s, protocol.Remove, v.remove)
	serve(mux, s, protocol.Mount, v.mount)
	serve(mux, s, protocol.Unmount, v.unmount)
	serve(mux, s, protocol.Path, v.path)
	serve(mux, s, protocol.Get, v.get)
	serve(mux, s, protocol.List, v.list)
	serve(mux, s, protocol.Capabilities, capabilities)
	return mux
}

func activate(context.Context, protocol.Nothing) (protocol.Implements, error) {
	return protocol.Implements{Implements: []string{protocol.VolumeDriver}}, nil
}

func capabilities(context.Context, protocol.Nothing) (scope protocol.Scope, err error) {
	scope.Capabilities.Scope = "local"
	return scope, nil
}

// serve registers f for one path.
func serve[Q, A any](mux *http.ServeMux, s *service, path string, f func(context.Context, Q) (A, error)) {
	mux.HandleFunc("POST "+path, func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), s.timeout)
		defer cancel()
		begun := time.Now()
		answer, err := guarded(ctx, s, path, http.MaxBytesReader(w, r.Body, maxRequest), f)
		s.log(ctx, path, time.Since(begun), err)
		if err != nil {
			reply(w, http.StatusInternalServerError, protocol.Failure{Err: cut(err.Error())})
			return
		}
		reply(w, http.StatusOK, answer)
	})
}

// guarded reads the request and answers it. A panic of the plugin is an error.
func guarded[Q, A any](ctx context.Context, s *service, path string, body io.Reader, f func(context.Context, Q) (A, error)) (answer A, err error) {
	select {
	case s.free <- struct{}{}:
		defer func() { <-s.free }()
	default:
		return answer, errTooManyCalls
	}
	request, err := read[Q](body)
	if err != nil {
		return answer, err
	}
	defer func() {
		if value := recover(); value != nil {
			err = &volume.PanicError{Call: path, Value: value}
		}
	}()
	return f(ctx, request)
}

// read reads one JSON object. Docker sends none for a call without arguments.
func read[Q any](body io.Reader) (request Q, err error) {
	data, err := io.ReadAll(body)
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		return request, fmt.Errorf("the request has more than %d bytes: %w", tooLarge.Limit, volume.ErrInvalid)
	}
	if err != nil {
		return request, fmt.Errorf("request: %w", err)
	}
	if data = bytes.TrimSpace(data); len(data) == 0 || string(data) == "null" {
		return request, nil
	}
	if err := json.Unmarshal(data, &request); err != nil {
		return request, fmt.Errorf("the request is not the JSON of this call: %w", volume.ErrInvalid) // its text may have values of options
	}
	return request, nil
}

func reply(w http.ResponseWriter, status int, answer any) {
	body, err := json.Marshal(answer)
	if err != nil {
		status, body = http.StatusInternalServerError, []byte(`{"Err":"the answer cannot be written as JSON"}`)
	}
	w.Header().Set("Content-Type", protocol.ContentType)
	w.WriteHeader(status)
	_, _ = w.Write(body) // if this fails, the caller has closed the connection; its next call finds the effect
}

// cut shortens a text to maxError bytes.
func cut(text string) string {
	text = strings.ToValidUTF8(text, "?")
	if len(text) <= maxError {
		return text
	}
	end := maxError
	for !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + "..."
}

// log logs failures, and calls that change something.
func (s *service) log(ctx context.Context, path string, took time.Duration, err error) {
	level := slog.LevelInfo
	switch path {
	case protocol.Activate, protocol.Path, protocol.Get, protocol.List, protocol.Capabilities:
		level = slog.LevelDebug
	}
	if err != nil && level == slog.LevelInfo {
		level = slog.LevelWarn
	}
	attributes := []slog.Attr{slog.String("call", strings.TrimPrefix(path, "/")), slog.Duration("took", took)}
	if err != nil {
		attributes = append(attributes, slog.Any("error", err))
	}
	s.logger.LogAttrs(ctx, level, "docker", attributes...)
}
