package volumemanager

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/volume"
)

// TestWhatAPluginQuotesOfItsOptionsIsNotShown: a plugin quotes its options in an error or a panic.
func TestWhatAPluginQuotesOfItsOptionsIsNotShown(t *testing.T) {
	const secret = "hush-7f3a"
	quoted := fmt.Errorf("login as %q with sas=%s: %w", "user", secret, os.ErrPermission)
	for _, method := range []fake.Method{fake.MethodAttach, fake.MethodWaitForAttach, fake.MethodMountDevice, fake.MethodSetUp} {
		for what, fault := range map[string]fake.Fault{
			"error": fake.FailN(3, quoted), "uncertain": fake.FailN(3, volume.Uncertain(quoted)), "panic": fake.PanicWith(quoted.Error()), "panic of an error": fake.PanicWith(quoted),
		} {
			t.Run(string(method)+" "+what, func(t *testing.T) {
				inBubble(t, func(t *testing.T) {
					var log bytes.Buffer
					recorder := &fake.Recorder{}
					o := withRecords(t)
					o.Recorder, o.Logger = recorder, slog.New(slog.NewJSONHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
					w := newWorld(t, o)
					w.claim("data", func(pv *v1.PersistentVolume) {
						pv.Spec.CSI.VolumeAttributes = map[string]string{"sas": secret}
					})
					m := w.start()
					m.PodsComplete()
					w.plugin.Inject(method, fault)
					pod := podOf("web", "data")
					require.NoError(t, m.AddPod(t.Context(), pod))
					require.NoError(t, w.plugin.AwaitCalls(t.Context(), method, 1))
					pass(0)
					ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
					defer cancel()
					err := m.WaitForAttachAndMount(ctx, pod)
					require.Error(t, err)
					assert.NotContains(t, err.Error(), secret)
					assert.Contains(t, err.Error(), "sas="+volume.Redacted, "the rest is told")
					if what != "panic" {
						require.ErrorIs(t, err, os.ErrPermission)
					}
					status := m.Status()
					encoded, jsonErr := json.Marshal(status)
					require.NoError(t, jsonErr)
					assert.NotContains(t, string(encoded), secret)
					assert.NotContains(t, fmt.Sprintf("%+v", status), secret)
					assert.NotContains(t, fmt.Sprintf("%+v", recorder.Events()), secret)
					assert.NotContains(t, log.String(), secret)
					require.NoError(t, m.WaitForAttachAndMount(t.Context(), pod))
					w.remove(pod)
					w.isClean()
				})
			})
		}
	}
}
