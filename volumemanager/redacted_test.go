package volumemanager

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/volume"
)

// What may be a secret is not on record; the volume can be taken away without it, and set up again from what the pod says.
func TestAVolumeWhoseRecordHidesSecretsIsTornDownAfterARestart(t *testing.T) {
	for _, wanted := range []bool{false, true} {
		inBubble(t, func(t *testing.T) {
			w := newWorld(t, withRecords(t))
			w.claim("data", func(pv *v1.PersistentVolume) {
				pv.Spec.CSI.VolumeAttributes = map[string]string{"pwd": "hush", "sas": "hush", "connectionString": "hush", "share": "hush"}
				pv.Spec.MountOptions = []string{"size=123456k"}
			})
			pod := podOf("web", "data", "-scratch")
			pod.Spec.Volumes[1].CSI.VolumeAttributes = map[string]string{"pwd": "hush"}
			w.start()
			w.add(pod)
			require.NoError(t, w.stop())
			for _, dir := range []string{w.options.RuntimeDir, w.options.StateDir} {
				content, err := os.ReadFile(logIn(dir))
				require.NoError(t, err)
				assert.NotContains(t, string(content), "hush")
				assert.NotContains(t, string(content), "123456")
				assert.Contains(t, string(content), volume.Redacted)
			}
			before := w.mounts()
			w.start()
			assert.Equal(t, before, w.mounts())
			if wanted {
				w.add(pod)
			}
			w.manager.PodsComplete()
			if wanted {
				w.remove(pod)
			}
			w.isClean()
		})
	}
}
