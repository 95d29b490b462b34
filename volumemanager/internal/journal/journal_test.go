package journal

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/internal/record"
	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/rootlock"
)

const (
	testRoot       = "/var/lib/agent"
	testNode       = types.NodeName("node-1")
	testDriver     = "fake.example.com"
	testPluginName = "example.com/fake"
	testVolume     = v1.UniqueVolumeName(testPluginName + "/disk-1")
)

func testHost(t *testing.T) volume.VolumeHost {
	t.Helper()
	host, err := volume.NewHost(volume.HostOptions{RootDir: testRoot, NodeName: testNode})
	require.NoError(t, err)
	return host
}

// testPlugins are plugins without public keys. If reusable is true, their volumes need no set-up after a restart.
type testPlugins struct {
	host     volume.VolumeHost
	reusable bool
}

func (p testPlugins) Host() volume.VolumeHost             { return p.host }
func (p testPlugins) PublicKeys(string) []string          { return nil }
func (p testPlugins) CanReuse(*volume.Spec) (bool, error) { return p.reusable, nil }

// withRecords returns options with two directories of records.
func withRecords(t *testing.T) Options {
	t.Helper()
	return Options{RuntimeDir: filepath.Join(t.TempDir(), "run"), StateDir: filepath.Join(t.TempDir(), "state")}
}

// newJournal returns a journal that is not yet open.
func newJournal(t *testing.T, o Options) *Journal {
	t.Helper()
	if o.Plugins == nil {
		o.Plugins = testPlugins{host: testHost(t)}
	}
	o.Root = &rootlock.Lock{}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return New(o)
}

func openJournal(t *testing.T, o Options) *Journal {
	t.Helper()
	j := newJournal(t, o)
	require.NoError(t, j.Open())
	t.Cleanup(func() { _ = j.Close(context.WithoutCancel(t.Context())) })
	return j
}

func testSpec() *volume.Spec {
	pv := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-1"}}
	pv.Spec.CSI = &v1.CSIPersistentVolumeSource{Driver: testDriver, VolumeHandle: "disk-1"}
	return volume.NewSpecFromPersistentVolume(pv, true)
}

func attachIntent(device string) operationexecutor.Intent {
	return operationexecutor.Intent{
		Kind: operationexecutor.OpAttach, VolumeName: testVolume, PluginName: testPluginName, Spec: testSpec(), NodeName: testNode, DevicePath: device,
	}
}

func stageIntent() operationexecutor.Intent {
	i := attachIntent("/dev/loop1")
	i.Kind, i.NodeName, i.DeviceMountPath = operationexecutor.OpMount, "", testRoot+"/plugins/"+testPluginName+"/mounts/disk-1"
	return i
}

func setUpIntent(pod string) operationexecutor.Intent {
	i := stageIntent()
	i.PodUID, i.Pod = types.UID(pod), types.NamespacedName{Namespace: "default", Name: pod}
	i.OuterVolumeSpecNames, i.MountPath = []string{"data"}, testRoot+"/pods/"+pod+"/volumes/example.com~fake/pv-1"
	return i
}

// reread closes j, opens another journal on the same directories, and returns the records that this one finds.
func reread(t *testing.T, j *Journal, o Options) []Record {
	t.Helper()
	require.NoError(t, j.Close(t.Context()))
	again := openJournal(t, o)
	found, damaged, err := again.Load(nil)
	require.NoError(t, err)
	require.Empty(t, damaged)
	var records []Record
	for _, v := range found {
		records = append(records, v.Record)
	}
	return records
}

func TestJournalRemembersEachPartUntilItIsForgotten(t *testing.T) {
	o := withRecords(t)
	j := openJournal(t, o)
	for _, i := range []operationexecutor.Intent{attachIntent(""), stageIntent(), setUpIntent("a"), setUpIntent("b")} {
		require.NoError(t, j.Intend(t.Context(), i))
	}
	require.NoError(t, j.Conclude(t.Context(), attachIntent("/dev/loop1"), operationexecutor.IntentDone))
	require.NoError(t, j.Conclude(t.Context(), setUpIntent("a"), operationexecutor.IntentForgotten))
	require.NoError(t, j.Conclude(t.Context(), setUpIntent("b"), operationexecutor.IntentUncertain))

	found := reread(t, j, o)
	require.Len(t, found, 1)
	r := found[0]
	assert.Equal(t, &Attachment{Node: testNode, DevicePath: "/dev/loop1"}, r.Attachment)
	assert.Equal(t, stageIntent().DeviceMountPath, r.Staging.Path)
	assert.Equal(t, []string{"data"}, r.Pods["b"].OuterNames)
	assert.NotContains(t, r.Pods, types.UID("a"))
	spec, err := r.spec()
	require.NoError(t, err)
	assert.Equal(t, testSpec(), spec)
}

func TestJournalForgetsTheVolumeWithItsLastTrace(t *testing.T) {
	for _, o := range []Options{withRecords(t), {RuntimeDir: filepath.Join(t.TempDir(), "run")}} {
		j := openJournal(t, o)
		intents := []operationexecutor.Intent{attachIntent(""), stageIntent(), setUpIntent("a")}
		for _, i := range intents {
			require.NoError(t, j.Intend(t.Context(), i))
		}
		for _, i := range intents {
			require.NotEmpty(t, j.entries)
			require.NoError(t, j.Conclude(t.Context(), i, operationexecutor.IntentForgotten))
		}
		assert.Empty(t, j.entries)
		assert.Empty(t, reread(t, j, o))
	}
}

func TestWhatEndsWithABootIsNotSyncedAndWhatOutlivesItIs(t *testing.T) {
	o := withRecords(t)
	j := openJournal(t, o)
	require.NoError(t, j.Intend(t.Context(), attachIntent("")))
	assert.Empty(t, recordsIn(t, o.RuntimeDir))
	assert.Len(t, recordsIn(t, o.StateDir), 1)
	require.NoError(t, j.Intend(t.Context(), stageIntent()))
	assert.Len(t, recordsIn(t, o.RuntimeDir), 1)
	require.NoError(t, j.Conclude(t.Context(), attachIntent(""), operationexecutor.IntentForgotten))
	assert.Empty(t, recordsIn(t, o.StateDir))
}

// recordsIn returns the records of a directory by their keys. A journal may have the directory open.
func recordsIn(t testing.TB, dir string) map[string]string {
	t.Helper()
	records, err := record.Peek(dir)
	if !errors.Is(err, os.ErrNotExist) {
		require.NoError(t, err)
	}
	return records
}

func TestIntentThatCannotBeWrittenIsNoIntent(t *testing.T) {
	o := Options{RuntimeDir: filepath.Join(t.TempDir(), "run")}
	j := openJournal(t, o)
	var log strings.Builder
	j.options.Logger = slog.New(slog.NewTextHandler(&log, nil))
	require.NoError(t, j.Intend(t.Context(), setUpIntent("a")))
	away := o.RuntimeDir + "-away"
	require.NoError(t, os.Rename(o.RuntimeDir, away))
	require.NoError(t, os.RemoveAll(away))
	require.Error(t, j.Intend(t.Context(), setUpIntent("b")))
	assert.NotContains(t, j.ofVolume(testVolume).record.Pods, types.UID("b"))
	assert.True(t, j.ofVolume(testVolume).stale, "the file may hold it nevertheless")
	require.Error(t, j.Conclude(t.Context(), attachIntent(""), operationexecutor.IntentDone))
	assert.True(t, j.ofVolume(testVolume).stale, "the next change writes what could not be written")
	assert.Empty(t, log.String(), "they were told who asked")
	require.NoError(t, j.Intend(t.Context(), setUpIntent("a")), "it is on record, or was never")
	assert.Contains(t, log.String(), record.ErrRemoved.Error())
	log.Reset()
	j.CatchUp(t.Context())
	assert.Contains(t, log.String(), record.ErrRemoved.Error())
}

// After a crash, the manager must not take its own new mount for a foreign one because an earlier mount is still on record
// there.
func TestAMountThatIsGoneIsOffTheRecordBeforeAnotherIsMade(t *testing.T) {
	o := Options{RuntimeDir: filepath.Join(t.TempDir(), "run")}
	j := openJournal(t, o)
	table := &oneMount{found: mount.MountPoint{UniqueID: 7}}
	j.options.Mounts = table
	mountOf := func() Mount { return j.ofVolume(testVolume).record.Pods["a"].Mount }
	require.NoError(t, j.Intend(t.Context(), setUpIntent("a")))
	require.NoError(t, j.Conclude(t.Context(), setUpIntent("a"), operationexecutor.IntentDone))
	require.True(t, mountOf().IsKnown())
	require.NoError(t, j.Intend(t.Context(), setUpIntent("a")))
	assert.True(t, mountOf().IsKnown(), "it is there still")
	table.err = mount.ErrNotMounted
	require.NoError(t, j.Intend(t.Context(), setUpIntent("a")))
	found := reread(t, j, o)
	require.Len(t, found, 1)
	assert.Contains(t, found[0].Pods, types.UID("a"))
	assert.False(t, found[0].Pods["a"].Mount.IsKnown())
}

// oneMount is a mount table that gives the same answer for every path.
type oneMount struct {
	found mount.MountPoint
	err   error
}

func (t *oneMount) List(context.Context) ([]mount.MountPoint, error) { return nil, t.err }
func (t *oneMount) Lookup(context.Context, string) (mount.MountPoint, error) {
	return t.found, t.err
}

func TestWaitForTheRecordEndsWithTheOperation(t *testing.T) {
	j := openJournal(t, Options{RuntimeDir: filepath.Join(t.TempDir(), "run")})
	release, _ := j.locks.Take(nil, testVolume)
	defer release()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, j.Intend(ctx, attachIntent("")), context.Canceled)
}

func TestManyPodsWriteOneRecord(t *testing.T) {
	o := withRecords(t)
	j := openJournal(t, o)
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			intent := setUpIntent(fmt.Sprintf("pod-%d", i))
			assert.NoError(t, j.Intend(t.Context(), intent))
			if i%2 == 0 {
				assert.NoError(t, j.Conclude(t.Context(), intent, operationexecutor.IntentForgotten))
			}
		})
	}
	wg.Wait()
	found := reread(t, j, o)
	require.Len(t, found, 1)
	assert.Len(t, found[0].Pods, 20)
}

func TestSpecsAreRecordedWithoutSecrets(t *testing.T) {
	const secret = "hunter2"
	options := func() map[string]string {
		return map[string]string{"Password": secret, "accessKey": secret, "pwd": secret, "sas": secret, "size": "1Mi"}
	}
	pv := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv", Annotations: map[string]string{"a": secret}}}
	pv.Spec.MountOptions = []string{"ro", "password=" + secret, "credentials=" + secret, "vers=4.2,password=" + secret}
	pv.Spec.CSI = &v1.CSIPersistentVolumeSource{Driver: testDriver, VolumeHandle: "h", VolumeAttributes: options()}
	flex := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}}
	flex.Spec.FlexVolume = &v1.FlexPersistentVolumeSource{Driver: "example.com/x", Options: options()}
	specs := []*volume.Spec{
		volume.NewSpecFromPersistentVolume(pv, false), volume.NewSpecFromPersistentVolume(flex, false),
		volume.NewSpecFromVolume(&v1.Volume{Name: "v", VolumeSource: v1.VolumeSource{CSI: &v1.CSIVolumeSource{VolumeAttributes: options()}}}),
		volume.NewSpecFromVolume(&v1.Volume{Name: "v", VolumeSource: v1.VolumeSource{FlexVolume: &v1.FlexVolumeSource{Options: options()}}}),
	}
	for _, spec := range specs {
		raw, err := encodeSpec(spec, []string{"size", "ro"})
		require.NoError(t, err)
		assert.NotContains(t, string(raw), secret)
		assert.Contains(t, string(raw), "1Mi", "what is no secret is kept")
	}
	assert.Equal(t, secret, pv.Spec.CSI.VolumeAttributes["Password"], "the spec itself is not changed")
	assert.Equal(t, "password="+secret, pv.Spec.MountOptions[1])
}

func TestMergedRecordsLoseNothing(t *testing.T) {
	pods := func(path string, uids ...types.UID) map[types.UID]*SetUp {
		m := make(map[types.UID]*SetUp)
		for _, uid := range uids {
			m[uid] = &SetUp{Path: path}
		}
		return m
	}
	a := Record{Volume: testVolume, Pods: pods("a", "1", "2")}
	b := Record{Volume: testVolume, Pods: pods("b", "2", "3"), Staging: &Staging{Path: "s"}, Attachment: &Attachment{Node: testNode}}
	merged := merge(merge(Record{}, a), b)
	assert.Equal(t, map[types.UID]*SetUp{"1": {Path: "a"}, "2": {Path: "a"}, "3": {Path: "b"}}, merged.Pods)
	assert.Equal(t, b.Staging, merged.Staging)
	assert.Equal(t, b.Attachment, merged.Attachment)
	assert.Equal(t, a, merge(a, Record{Volume: testVolume}))
}

func TestASetUpThatIsNullIsNoRecord(t *testing.T) {
	record := `{"version":2,"bootID":"b","volume":"` + string(testVolume) + `","plugin":"` + testPluginName + `","spec":{"volume":{"name":"v"}},"pods":{"u":%s}}`
	_, err := decodeRecord(string(testVolume), fmt.Appendf(nil, record, "null"), testHost(t))
	require.ErrorIs(t, err, volume.ErrInvalid)
	setUp := `{"namespace":"n","name":"p","outerNames":["o"],"path":"` + testRoot + `/pods/u/volumes/x/y"}`
	_, err = decodeRecord(string(testVolume), fmt.Appendf(nil, record, setUp), testHost(t))
	require.NoError(t, err)
}

func FuzzDecodeRecord(f *testing.F) {
	f.Add([]byte(`{"version":1,"bootID":"b","volume":"example.com/fake/disk-1","plugin":"example.com/fake","spec":{"volume":{"name":"v"}},` +
		`"attachment":{"node":"node-1"},"staging":{"path":"/var/lib/agent/plugins/example.com/fake/mounts/x"},` +
		`"pods":{"u":{"namespace":"n","name":"p","outerNames":["o"],"path":"/var/lib/agent/pods/u/volumes/x/y"}}}`))
	f.Add([]byte(`{"version":2,"bootID":"b","volume":"example.com/fake/disk-1","plugin":"example.com/fake","spec":{"volume":{"name":"v"}},"pods":{"u":null}}`))
	f.Fuzz(func(t *testing.T, payload []byte) {
		found, err := decodeRecord(string(testVolume), payload, testHost(t))
		if err != nil {
			return
		}
		r := found.Record
		if r.Staging != nil {
			assert.True(t, strings.HasPrefix(filepath.Clean(r.Staging.Path), testRoot+"/plugins/"+testPluginName+"/"))
		}
		for uid, p := range r.Pods {
			assert.True(t, strings.HasPrefix(filepath.Clean(p.Path), testRoot+"/pods/"+string(uid)+"/"))
			assert.NotContains(t, string(uid), "/")
		}
	})
}

func TestAPlatformWithoutBootsKeepsNoRecords(t *testing.T) {
	j := New(Options{RuntimeDir: t.TempDir()})
	j.Disk.BootID = func() (string, error) { return "", record.ErrUnsupported }
	require.ErrorIs(t, j.Open(), volume.ErrUnsupported)
}
