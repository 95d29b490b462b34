package dockerdriver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/volumekit/volumekit/bridge/docker/internal/protocol"
	"github.com/volumekit/volumekit/volume"
)

// maxAnswer is the largest size of an answer in bytes.
const maxAnswer = 1 << 20

// DriverError is an error that the driver returned.
type DriverError struct {
	// Call is the call, such as "VolumeDriver.Mount".
	Call string
	// Text is the driver's message, cut at 64 bytes and quoted.
	Text string
}

// Error names the call and has the message.
func (e *DriverError) Error() string { return "the driver refuses " + e.Call + ": " + e.Text }

// client calls a driver. Each call has its own connection, so nothing runs between calls.
type client struct {
	http    *http.Client
	timeout time.Duration
}

func newClient(socket string, timeout time.Duration) *client {
	return &client{timeout: timeout, http: &http.Client{
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			DisableKeepAlives: true, MaxResponseHeaderBytes: 64 << 10,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				var dialer net.Dialer
				return dialer.DialContext(ctx, "unix", socket)
			},
		},
	}}
}

// call makes one call and reads its answer into answer.
func (c *client) call(ctx context.Context, path string, request, answer any) error {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	name := strings.TrimPrefix(path, "/")
	body, err := json.Marshal(request)
	if err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://driver"+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Accept", protocol.ContentType)
	response, err := c.http.Do(r)
	var dialling *net.OpError
	if errors.As(err, &dialling) && dialling.Op == "dial" {
		return fmt.Errorf("the driver is not there: start it: %w", volume.Transient(err))
	}
	if err != nil {
		return volume.Uncertain(fmt.Errorf("%s: %w", name, err))
	}
	defer func() { _ = response.Body.Close() }() // it is read to its end, or given up
	text, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer+1))
	if err == nil && len(text) > maxAnswer {
		err = fmt.Errorf("the answer has more than %d bytes", maxAnswer)
	}
	if err != nil {
		return volume.Uncertain(fmt.Errorf("%s: %w", name, err))
	}
	var failure protocol.Failure
	if err := json.Unmarshal(text, &failure); err != nil {
		return volume.Uncertain(fmt.Errorf("%s: status %d, and the answer is not the JSON of this call: %w", name, response.StatusCode, err))
	}
	if failure.Err != "" || response.StatusCode != http.StatusOK {
		return &DriverError{Call: name, Text: volume.Quote(failure.Err)}
	}
	if err := json.Unmarshal(text, answer); err != nil {
		return volume.Uncertain(fmt.Errorf("%s: the answer is not the JSON of this call: %w", name, err))
	}
	return nil
}

// isRefusal reports whether the driver answered with an error.
func isRefusal(err error) bool {
	var refusal *DriverError
	return errors.As(err, &refusal)
}
