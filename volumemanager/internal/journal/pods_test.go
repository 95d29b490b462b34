package journal

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/podvolume"
)

// countedDir counts the bytes that are written to a directory of records.
type countedDir struct {
	Dir

	bytes int
}

func (d *countedDir) Put(key string, payload []byte) error {
	d.bytes += len(payload)
	return d.Dir.Put(key, payload)
}

// TestWhatIsWrittenForAPodDoesNotGrowWithThePods: the bytes written for a pod do not grow with the number of pods that share
// its volume, and a restart finds every pod.
func TestWhatIsWrittenForAPodDoesNotGrowWithThePods(t *testing.T) {
	o := withRecords(t)
	j := openJournal(t, o)
	counted := &countedDir{Dir: j.runtime}
	j.runtime = counted
	require.NoError(t, j.Intend(t.Context(), stageIntent()))
	each := func(from, to int, do func(operationexecutor.Intent)) int {
		before := counted.bytes
		for i := from; i < to; i++ {
			do(setUpIntent(fmt.Sprintf("pod-%04d", i)))
		}
		return (counted.bytes - before) / (to - from)
	}
	intend := func(i operationexecutor.Intent) { require.NoError(t, j.Intend(t.Context(), i)) }
	forget := func(i operationexecutor.Intent) {
		require.NoError(t, j.Conclude(t.Context(), i, operationexecutor.IntentForgotten))
	}
	few := each(0, 20, intend)
	many := each(20, 400, intend)
	t.Logf("%d bytes for each of 20 pods, %d for each of the next 380", few, many)
	assert.LessOrEqual(t, many, few)
	assert.LessOrEqual(t, each(100, 200, forget), few)

	require.NoError(t, j.Close(t.Context()))
	j = openJournal(t, o)
	found, _, err := j.Load(nil)
	require.NoError(t, err)
	require.Len(t, found, 1)
	assert.NotNil(t, found[0].Record.Staging)
	assert.Len(t, found[0].Record.Pods, 300)
	for i := range 400 {
		forget(setUpIntent(fmt.Sprintf("pod-%04d", i)))
	}
	forget(stageIntent())
	assert.Empty(t, j.entries)
	assert.Empty(t, reread(t, j, o))
}

// TestAPodsOwnRecordCountsAndIsOfItsVolume: a pod's own record wins over the volume's record of that pod; a volume may be
// known from its pods' own records alone; and a pod's own record with any other content is damaged.
func TestAPodsOwnRecordCountsAndIsOfItsVolume(t *testing.T) {
	o := Options{RuntimeDir: filepath.Join(t.TempDir(), "run")}
	j := openJournal(t, o)
	for i := range podsInRecord + 2 {
		require.NoError(t, j.Intend(t.Context(), setUpIntent(fmt.Sprintf("pod-%d", i))))
	}
	require.Len(t, recordsIn(t, o.RuntimeDir), 3)
	last := j.SetUpOf(testVolume, "pod-9")
	require.NotNil(t, last)
	for i := range podsInRecord {
		require.NoError(t, j.Conclude(t.Context(), setUpIntent(fmt.Sprintf("pod-%d", i)), operationexecutor.IntentForgotten))
	}
	require.Len(t, recordsIn(t, o.RuntimeDir), 2)

	// The volume's record still holds an older set-up of the pod, because its last write failed.
	whole := j.entryOf(podvolume.Key{Volume: testVolume, Pod: "pod-9"}).record
	older := *last
	older.SELinux, older.Settled = "older", &Settled{}
	whole.Pods = map[types.UID]*SetUp{"pod-9": &older}
	require.NoError(t, put(j.runtime, string(testVolume), whole))
	require.NoError(t, j.Close(t.Context()))
	j = openJournal(t, o)
	found, damaged, err := j.Load(nil)
	require.NoError(t, err)
	require.Empty(t, damaged)
	require.Len(t, found, 1)
	assert.Len(t, found[0].Record.Pods, 2)
	assert.Equal(t, last, found[0].Record.Pods["pod-9"])
	j.CatchUp(t.Context())
	assert.Len(t, recordsIn(t, o.RuntimeDir), 2)

	own := j.entryOf(podvolume.Key{Volume: testVolume, Pod: "pod-9"}).record
	for key, change := range map[string]func(*Record){
		ownKey(testVolume, "pod-8"): func(*Record) {},
		ownKey(testVolume, "pod-9"): func(r *Record) { r.Staging = &Staging{Path: stageIntent().DeviceMountPath} },
	} {
		r := own.clone()
		change(&r)
		payload, err := json.Marshal(r)
		require.NoError(t, err)
		_, err = decodeRecord(key, payload, testHost(t))
		require.Error(t, err, key)
	}
}

// TestAPodThatWasGivenAnotherSpecIsNotSettled: a restart keeps one spec for each volume. A pod that was set up with another
// spec is set up again.
func TestAPodThatWasGivenAnotherSpecIsNotSettled(t *testing.T) {
	o := Options{RuntimeDir: filepath.Join(t.TempDir(), "run")}
	o.Mounts, o.Plugins = &oneMount{found: mount.MountPoint{UniqueID: 7}}, testPlugins{host: testHost(t), reusable: true}
	j := openJournal(t, o)
	settle := func(i operationexecutor.Intent) {
		i.SetUpArgs = &volume.MounterArgs{}
		require.NoError(t, j.Intend(t.Context(), i))
		require.NoError(t, j.Conclude(t.Context(), i, operationexecutor.IntentDone))
	}
	for i := range podsInRecord + 1 {
		settle(setUpIntent(fmt.Sprintf("pod-%d", i)))
	}
	later := setUpIntent("later")
	later.Spec.ReadOnly = !later.Spec.ReadOnly
	settle(later)
	require.NotNil(t, j.SetUpOf(testVolume, "later").Settled)
	found := reread(t, j, o)
	require.Len(t, found, 1)
	assert.Nil(t, found[0].Pods["later"].Settled)
	assert.NotNil(t, found[0].Pods["pod-8"].Settled)
}

// fieldsOfRecord are the JSON fields of a record of Version.
const fieldsOfRecord = `attachment.devicePath attachment.node bootID plugin
pods.mount.other.FSType pods.mount.other.Flags pods.mount.other.ID pods.mount.other.Major pods.mount.other.Minor
pods.mount.other.Root pods.mount.other.Source pods.mount.other.UniqueID pods.mount.unique pods.name pods.namespace pods.outerNames pods.path pods.seLinuxContext
pods.settled.fsGroup pods.settled.fsGroupChangePolicy pods.settled.fsUser pods.settled.options pods.settled.readOnlyFilesystem pods.settled.size
spec spec.persistentVolume spec.readOnly spec.volume staging.devicePath
staging.mount.other.FSType staging.mount.other.Flags staging.mount.other.ID staging.mount.other.Major staging.mount.other.Minor
staging.mount.other.Root staging.mount.other.Source staging.mount.other.UniqueID staging.mount.unique staging.path staging.seLinuxContext version volume`

// TestTheFieldsOfARecordAreThoseOfItsVersion: a change of the fields needs a new Version, by which an earlier manager sees
// that it cannot read the record.
func TestTheFieldsOfARecordAreThoseOfItsVersion(t *testing.T) {
	fields := recordedFields("", reflect.TypeFor[Record]())
	for _, f := range recordedFields("", reflect.TypeFor[specRecord]()) {
		fields = append(fields, "spec."+f)
	}
	slices.Sort(fields)
	assert.Equal(t, strings.Fields(fieldsOfRecord), fields, "records have changed: they need another Version, and a test that the earlier one is read")
	begins := fmt.Sprintf(`{"version":%d,`, Version)
	assert.Equal(t, ourVersion, begins)
}

// recordedFields returns the names of a struct's JSON fields. It does not enter types of other modules.
func recordedFields(prefix string, of reflect.Type) (names []string) {
	for i := range of.NumField() {
		f := of.Field(i)
		if !f.IsExported() {
			continue
		}
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" {
			name = f.Name
		}
		next := f.Type
		for next.Kind() == reflect.Pointer || next.Kind() == reflect.Map {
			next = next.Elem()
		}
		if next.Kind() == reflect.Struct && strings.Contains(next.PkgPath(), "volumekit") {
			names = append(names, recordedFields(prefix+name+".", next)...)
			continue
		}
		names = append(names, prefix+name)
	}
	return names
}
