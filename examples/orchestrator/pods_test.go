package main

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/volume"
)

// TestWhyAPodWaitsIsSaidOnceForEachReason, however often it was tried.
func TestWhyAPodWaitsIsSaidOnceForEachReason(t *testing.T) {
	var said bytes.Buffer
	a := &agent{options: options{reportAfter: time.Hour}, out: newOutput(&said)}
	reasons := []error{assert.AnError, assert.AnError, context.Canceled, context.Canceled, assert.AnError}
	tries := 0
	require.NoError(t, a.waitReporting(t.Context(), func(context.Context) error {
		if tries == len(reasons) {
			return nil
		}
		tries++
		return &volume.NotReadyError{Awaited: "ready", Err: context.DeadlineExceeded, Volumes: []volume.NotReadyVolume{
			{OuterName: "data", Phase: "waiting", Attempts: tries, NextTry: time.Now(), Err: reasons[tries-1]},
		}}
	}))
	assert.Equal(t, 3, strings.Count(said.String(), "\n"))
}
