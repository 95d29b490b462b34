package journal

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

func TestNothingMayFollowARecord(t *testing.T) {
	intent := setUpIntent("a")
	r := Record{Version: Version, Volume: testVolume, Plugin: testPluginName, BootID: "b"}
	spec, err := encodeSpec(intent.Spec, nil)
	require.NoError(t, err)
	r.Spec = spec
	r.add(intent)
	payload, err := json.Marshal(r)
	require.NoError(t, err)
	require.True(t, bytes.HasPrefix(payload, []byte(ourVersion)))
	_, err = decodeRecord(string(testVolume), append(payload, " \n"...), testHost(t))
	require.NoError(t, err)
	for _, rest := range []string{"x", "{}", `{"version":1}`, "\x00"} {
		_, err := decodeRecord(string(testVolume), append(bytes.Clone(payload), rest...), testHost(t))
		require.ErrorIs(t, err, volume.ErrInvalid, rest)
	}
}

// TestTheSpecOfTheFirstPodProvesNothingForAnother that was given a later one.
func TestTheSpecOfTheFirstPodProvesNothingForAnother(t *testing.T) {
	j := newJournal(t, Options{Plugins: testPlugins{reusable: true}})
	size := resource.MustParse("1Mi")
	intent := setUpIntent("a")
	intent.SetUpArgs = &volume.MounterArgs{DesiredSize: &size}
	var r Record
	require.NoError(t, j.identify(&r, intent))
	found := seenMount{Mount: Mount{Unique: 7}, options: "rw"}
	assert.Equal(t, &Settled{Size: "1Mi", Options: "rw"}, j.settled(&r, intent, found))
	same := *intent.Spec
	intent.Spec = &same
	assert.NotNil(t, j.settled(&r, intent, found), "what it says counts")
	other := *intent.Spec
	other.ReadOnly = !other.ReadOnly
	intent.Spec = &other
	assert.Nil(t, j.settled(&r, intent, found))
}

// TestTheLabelOfAStagingStaysOnRecordWhileItIsUndone: the intent to undo it has none, and a write would be lost work.
func TestTheLabelOfAStagingStaysOnRecordWhileItIsUndone(t *testing.T) {
	var r Record
	intent := operationexecutor.Intent{Kind: operationexecutor.OpMount, DeviceMountPath: "/stage", SELinuxMountContext: "label"}
	assert.True(t, r.add(intent))
	intent.Kind, intent.SELinuxMountContext = operationexecutor.OpUnmountDevice, ""
	assert.False(t, r.add(intent))
	assert.Equal(t, "label", r.Staging.SELinux)
}

func checked(r Record, host volume.VolumeHost) error {
	_, err := r.check(string(r.Volume), host)
	return err
}

// A hostPath volume is set up where it is, outside of the pod's directory: its record is no hostile one, as that of
// another volume with such a path is.
func TestARecordOfAHostPathIsReadAgain(t *testing.T) {
	record := func(spec string) Record {
		return Record{
			Version: Version, Volume: "kubernetes.io/host-path/pods/uid-web/logs", Plugin: "kubernetes.io/host-path",
			Spec: json.RawMessage(spec), Pods: map[types.UID]*SetUp{
				"uid-web": {Namespace: "default", Name: "web", OuterNames: []string{"logs"}, Path: "/var/log"},
			},
		}
	}
	host := testHost(t)
	for name, spec := range map[string]string{
		"of a pod":              `{"volume": {"name": "logs", "hostPath": {"path": "/var/log/"}}}`,
		"a persistent volume's": `{"persistentVolume": {"metadata": {"name": "logs"}, "spec": {"hostPath": {"path": "/var/log"}}}}`,
	} {
		r := record(spec)
		assert.NoError(t, checked(r, host), name)
	}
	for name, spec := range map[string]string{
		"another directory": `{"volume": {"name": "logs", "hostPath": {"path": "/var"}}}`,
		"another kind":      `{"volume": {"name": "logs", "emptyDir": {}}}`,
	} {
		r := record(spec)
		assert.ErrorIs(t, checked(r, host), volume.ErrInvalid, name)
	}
}
