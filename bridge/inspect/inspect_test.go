package inspect

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager"
)

var _ Node = (*volumemanager.Manager)(nil)

// node is a node that stands still, and counts how often it is read.
type node struct {
	status  volumemanager.NodeStatus
	hung    []operationexecutor.HungCall
	stats   map[types.UID][]volumemanager.VolumeStats
	history *History
	reads   int
	// changes yields the changes of the node; nil when there are none.
	changes func(context.Context) iter.Seq[volumemanager.Change]
}

func (n *node) Status() volumemanager.NodeStatus   { n.reads++; return n.status }
func (n *node) Hung() []operationexecutor.HungCall { return n.hung }

func (n *node) PodStats(uid types.UID, maxAge time.Duration) []volumemanager.VolumeStats {
	n.reads++
	if maxAge != time.Minute {
		return nil
	}
	return n.stats[uid]
}

func (n *node) Subscribe(ctx context.Context) iter.Seq[volumemanager.Change] { return n.changes(ctx) }

var began = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func aNode() *node {
	call := operationexecutor.HungCall{
		Operation: operationexecutor.OperationInfo{Kind: operationexecutor.OpMount, PluginName: "example.com/nfs", VolumeName: "example.com/nfs/c", PodName: "uid-c"},
		Call:      "SetUpAt", Since: began,
	}
	return &node{
		status: volumemanager.NodeStatus{
			Running: true, PodsComplete: true,
			Volumes: []volumemanager.VolumeStatus{
				volumeStatus("a", "example.com/disk", volumemanager.PhaseMounted),
				with(volumeStatus("b", "example.com/disk", volumemanager.PhaseWaiting), func(s *volumemanager.VolumeStatus) {
					s.Err, s.Attempts, s.NextTry = errors.New("no space left"), 3, began
				}),
				with(volumeStatus("c", "example.com/nfs", volumemanager.PhaseMounting), func(s *volumemanager.VolumeStatus) {
					s.Conditions = []volumemanager.Condition{{
						HealthCondition: volume.HealthCondition{Status: volume.HealthAbnormal, Reason: volumemanager.ReasonHung, Message: "SetUpAt hangs"},
						Since:           began, Err: &volumemanager.HungError{Call: call},
					}}
				}),
				volumeStatus("d", "example.com/disk", volumemanager.PhaseAttaching),
			},
			Orphans:  []volumemanager.Orphan{{Path: "/v/orphan", Err: errors.New("busy")}},
			Damaged:  []volumemanager.DamagedRecord{{Path: "/v/record", Err: errors.New("torn")}},
			LostData: []volumemanager.LostData{{Volume: "example.com/disk/x", At: began, Err: errors.New("input/output error")}},
		},
		hung: []operationexecutor.HungCall{call},
	}
}

func volumeStatus(name, plugin string, phase volumemanager.Phase) volumemanager.VolumeStatus {
	return volumemanager.VolumeStatus{
		PodUID: types.UID("uid-" + name), PodName: types.NamespacedName{Namespace: "shop", Name: name}, OuterName: "data",
		Volume: v1.UniqueVolumeName(plugin + "/" + name), Plugin: plugin, Phase: phase, Wanted: true,
	}
}

func with(s volumemanager.VolumeStatus, change func(*volumemanager.VolumeStatus)) volumemanager.VolumeStatus {
	change(&s)
	return s
}

func do(t testing.TB, n Node, method, target string) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	handlerOf(n).ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), method, target, nil))
	return w
}

func handlerOf(n Node) http.Handler {
	if still, ok := n.(*node); ok {
		return NewNode(n, NodeOptions{History: still.history})
	}
	return NewNode(n, NodeOptions{})
}

func read(t testing.TB, n Node, target string) NodeAnswer {
	t.Helper()
	w := do(t, n, http.MethodGet, target)
	require.Equal(t, http.StatusOK, w.Code, w.Body)
	var a NodeAnswer
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &a))
	return a
}

func pods(a NodeAnswer) string {
	var names []string
	for _, v := range a.Volumes {
		names = append(names, v.Pod.Name)
	}
	return strings.Join(names, "")
}

func TestWhatNeedsAttentionComesFirst(t *testing.T) {
	a := read(t, aNode(), "/v1/node")
	assert.Equal(t, "cbda", pods(a), "hung, failed, on its way, as it should be")
	assert.Equal(t, Counts{Volumes: 4, Matching: 4, Attention: 2, HungCalls: 1, Orphans: 1, DamagedRecords: 1, LostData: 1}, a.Counts)
	assert.True(t, a.Volumes[0].Hung)
	assert.Equal(t, "no space left", a.Volumes[1].Error)
	assert.Equal(t, began, a.Volumes[1].NextTry)
	assert.Equal(t, "SetUpAt", a.HungCalls[0].Call)
	assert.Equal(t, []Orphan{{Path: "/v/orphan", Error: "busy"}}, a.Orphans)
	assert.Equal(t, []DamagedRecord{{Path: "/v/record", Error: "torn"}}, a.DamagedRecords)
	assert.Equal(t, "input/output error", a.LostData[0].Error)
}

func TestTheNamesInJSONAreStable(t *testing.T) {
	body := do(t, aNode(), http.MethodGet, "/v1/node?pod=b").Body.String()
	assert.JSONEq(t, `{"version":1,
		"running":true,"podsComplete":true,"counts":{"volumes":4,"matching":1,"attention":1,"hungCalls":1,"orphans":1,"damagedRecords":1,"lostData":1},"offset":0,
		"volumes":[{"pod":{"namespace":"shop","name":"b","uid":"uid-b"},"name":"data","volume":"example.com/disk/b",
			"plugin":"example.com/disk","phase":"waiting","wanted":true,"error":"no space left","attempts":3,"nextTry":"2026-01-02T03:04:05Z"}],
		"hungCalls":[{"call":"SetUpAt","operation":"`+string(operationexecutor.OpMount)+`","plugin":"example.com/nfs","volume":"example.com/nfs/c","podUID":"uid-c","since":"2026-01-02T03:04:05Z"}],
		"orphans":[{"path":"/v/orphan","mounted":false,"error":"busy"}],
		"damagedRecords":[{"path":"/v/record","error":"torn"}],
		"lostData":[{"volume":"example.com/disk/x","at":"2026-01-02T03:04:05Z","error":"input/output error"}]}`, body)
}

func TestFiltersAndPages(t *testing.T) {
	for target, want := range map[string]string{
		"?pod=uid-a": "a", "?pod=b": "b", "?pod=shop/c": "c", "?pod=shop": "",
		"?plugin=example.com/disk": "bda", "?phase=mounted": "a", "?plugin=example.com/disk&phase=waiting": "b",
		"?limit=2": "cb", "?offset=1&limit=2": "bd", "?offset=99": "",
	} {
		assert.Equal(t, want, pods(read(t, aNode(), "/v1/node"+target)), target)
	}
}

func TestAQueryThatIsWrongIsRefusedAndNotRepeated(t *testing.T) {
	for _, q := range []string{"limit=0", "limit=100001", "limit=<b>", "offset=-1", "offset=<b>", "stacks=<b>", "usage=<b>", "pod=%zz", "limit=99999999999999999999"} {
		n := aNode()
		w := do(t, n, http.MethodGet, "/v1/node?"+q)
		assert.Equal(t, http.StatusBadRequest, w.Code, q)
		assert.NotContains(t, w.Body.String(), "<b>")
		assert.Zero(t, n.reads, "the manager is not read for it")
	}
	assert.Equal(t, http.StatusBadRequest, do(t, aNode(), http.MethodGet, "/?limit=501").Code, "a page is short")
	assert.Equal(t, http.StatusMethodNotAllowed, do(t, aNode(), http.MethodPost, "/v1/node").Code)
	assert.Empty(t, do(t, aNode(), http.MethodHead, "/v1/node").Body.String())
}

func TestTheTableIsForPeople(t *testing.T) {
	body := do(t, aNode(), http.MethodGet, "/v1/node.txt").Body.String()
	assert.Contains(t, body, "4 of 4 volumes match, 2 need attention; 1 hung calls")
	assert.Contains(t, body, "error: no space left\n    failed 3 times in a row; next try: 2026-01-02T03:04:05Z\n")
	assert.Contains(t, body, "HUNG since 2026-01-02T03:04:05Z: SetUpAt of example.com/nfs")
	assert.Contains(t, body, "ORPHAN /v/orphan, a directory: busy\n")
	assert.Less(t, strings.Index(body, "shop/c"), strings.Index(body, "shop/b"))
}

func TestThePageShowsWhatNeedsAttentionFirst(t *testing.T) {
	w := do(t, aNode(), http.MethodGet, "/?limit=2&offset=1&plugin=example.com/disk")
	body := w.Body.String()
	assert.Contains(t, body, "<h1>1 of 3 volumes need attention</h1>")
	assert.Contains(t, body, `rel="prev" href="?limit=2&amp;offset=0&amp;plugin=example.com%2Fdisk"`)
	assert.NotContains(t, body, `rel="next"`, "it is the last page")
	assert.Contains(t, w.Header().Get("Content-Security-Policy"), "default-src 'none'; style-src 'unsafe-inline'; script-src 'self';")
	assert.NotContains(t, body, "<script>", "no script of the page's own runs")

	body = do(t, aNode(), http.MethodGet, "/").Body.String()
	order := []string{
		"1 hung call, 1 report of lost data, 1 damaged record, 1 orphan; 4 volumes", "input/output error", "<h2>Hung calls", "SetUpAt", "torn",
		"<h2>Volumes that need attention", "shop/c", "shop/b", "no space left", "failed 3 times", "<h2>Other volumes", "shop/d", "shop/a", "/v/orphan",
	}
	for _, s := range order {
		_, after, found := strings.Cut(body, s)
		require.True(t, found, "%q after what is before it in %q", s, order)
		body = after
	}
}

// What was, and what will be, is said with how long it is from now.
func TestThePageSaysHowLongAgoThingsWere(t *testing.T) {
	n := aNode()
	n.hung[0].Since = time.Now().Add(-90 * time.Second)
	n.status.Volumes[1].NextTry = time.Now().Add(time.Hour)
	body := do(t, n, http.MethodGet, "/").Body.String()
	assert.Regexp(t, `begun \S+Z \(1m[0-9]+s ago\)`, body)
	assert.Regexp(t, `next try \S+Z \(in (1h0m0s|59m[0-9]+s)\)`, body)
	assert.Regexp(t, `<option selected>waiting</option>`, do(t, n, http.MethodGet, "/?phase=waiting").Body.String())
	assert.Contains(t, do(t, n, http.MethodGet, "/?phase=none").Body.String(), `<option selected>none</option>`)
}

// TestEachViewSaysWhereAndWhatThingsAre looks for what is needed to act on a volume: its path, the pod of a hung call and of lost
// data, and what an orphan is.
func TestEachViewSaysWhereAndWhatThingsAre(t *testing.T) {
	n := aNode()
	n.status.Volumes[0].Path = "/v/of/a/well/volume"
	n.status.Volumes[1].Path, n.status.Volumes[1].DeviceMountPath = "/v/of/b", "/v/stage/b"
	n.status.Volumes[2].DeviceMountPath = "/v/stage/c"
	n.status.LostData[0].PodUID = "uid-x"
	n.status.Orphans = []volumemanager.Orphan{{Path: "/v/dir"}, {Path: "/v/mounted", Mounted: true, FSType: "ext4"}, {Path: "/dev/loop7", BackingFile: "/v/disk.img"}}
	page, table := do(t, n, http.MethodGet, "/").Body.String(), do(t, n, http.MethodGet, "/v1/node.txt").Body.String()
	for _, body := range []string{page, table} {
		for _, part := range []string{"at /v/of/b", "at /v/stage/c", "/v/dir, a directory", "/v/mounted, a mount of ext4", "/dev/loop7, a loop device of /v/disk.img"} {
			assert.Contains(t, body, part)
		}
		assert.NotContains(t, body, "/v/of/a/well/volume", "lines are for what needs attention")
		assert.Contains(t, body, "of pod uid-c")
		assert.Contains(t, body, "of pod uid-x")
	}
	assert.NotContains(t, table, "not ready")
	n.status.PodsComplete = false
	assert.Contains(t, do(t, n, http.MethodGet, "/v1/node.txt").Body.String(), "not ready: not all pods were added")
	n.status.Running = false
	assert.Contains(t, do(t, n, http.MethodGet, "/v1/node.txt").Body.String(), "not ready: Run does not work")
}

// newManager returns a manager that does not run, with a plugin on fakes.
func newManager(t testing.TB) (*volumemanager.Manager, *fake.Mounter) {
	t.Helper()
	host, err := volume.NewHost(volume.HostOptions{RootDir: t.TempDir(), NodeName: "node"})
	require.NoError(t, err)
	plugins := volume.NewVolumePluginMgr(host)
	mounter := fake.NewMounter(fake.MounterOptions{})
	require.NoError(t, plugins.InitPlugins(t.Context(), fake.NewPlugin(fake.PluginOptions{Mounter: mounter})))
	m, err := volumemanager.New(plugins, volumemanager.Options{Mounter: mounter, NoRecords: true})
	require.NoError(t, err)
	return m, mounter
}

// A manager that works and knows all of its pods is ready; each probe says what is missing.
func TestAManagerIsReadyWhenItRunsAndKnowsItsPods(t *testing.T) {
	m, _ := newManager(t)
	probe := func(target string) string {
		w := do(t, m, http.MethodGet, target)
		return fmt.Sprint(w.Code, " ", w.Body)
	}
	assert.Equal(t, "503 not ready: Run does not work, or has not read its records yet\n", probe("/readyz"))
	assert.Contains(t, do(t, m, http.MethodGet, "/").Body.String(), "The manager does not run")

	ended := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { ended <- m.Run(ctx) }()
	require.Eventually(t, func() bool { return m.Status().Running }, time.Minute, time.Millisecond)
	assert.Equal(t, "503 not ready: not all pods were added since the start (PodsComplete)\n", probe("/readyz"))
	assert.Contains(t, do(t, m, http.MethodGet, "/").Body.String(), "Not all pods were added")
	m.PodsComplete()
	assert.Equal(t, "200 ready\n", probe("/readyz"))
	assert.Equal(t, "200 alive\n", probe("/livez"))
	assert.NotContains(t, do(t, m, http.MethodGet, "/").Body.String(), `class="bad"`)
	cancel()
	require.NoError(t, <-ended)
	assert.Equal(t, "503 not ready: Run does not work, or has not read its records yet\n", probe("/readyz"))
}

// An answer ends, however long the names and the lists are.
func TestTextsAndListsHaveAnEnd(t *testing.T) {
	n := aNode()
	n.status.Volumes[0].Err = errors.New(strings.Repeat("é", 1<<20))
	for i := range 3 * maxList {
		n.status.Orphans = append(n.status.Orphans, volumemanager.Orphan{Path: fmt.Sprint(i)})
	}
	a := read(t, n, "/v1/node?pod=a")
	assert.LessOrEqual(t, len(a.Volumes[0].Error), maxText)
	assert.True(t, strings.HasSuffix(a.Volumes[0].Error, "é…"))
	assert.Len(t, a.Orphans, maxList)
	assert.Equal(t, 3*maxList+1, a.Counts.Orphans)
}

// FuzzNode: names from outside and requests from anywhere.
func FuzzNode(f *testing.F) {
	f.Add("<script>", "pod=a")
	f.Add("a\nORPHAN /\x1b[2J", "limit=1&offset=0")
	f.Add("\xff\u202e\\040 (deleted)", "stacks=1")
	f.Add(strings.Repeat("x", 2*maxText), "pod=%zz&phase=;")
	f.Fuzz(func(t *testing.T, name, rawQuery string) {
		n := aNode()
		s := &n.status.Volumes[0]
		s.PodUID, s.OuterName, s.Volume, s.Plugin = types.UID(name), name, v1.UniqueVolumeName(name), name
		s.PodName, s.Err, s.Path, s.Phase = types.NamespacedName{Namespace: name, Name: name}, errors.New("about "+name), name, volumemanager.Phase(name)
		n.status.Orphans[0].Path, n.status.Damaged[0].Path, n.status.LostData[0].Volume = name, name, v1.UniqueVolumeName(name)
		call := &n.hung[0]
		call.Call, call.Operation.PluginName, call.Operation.VolumeName, call.Operation.PodName = name, name, v1.UniqueVolumeName(name), volume.UniquePodName(name)
		lines := 0
		for _, target := range []string{"/v1/node", "/", "/v1/node.txt"} {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, target, nil)
			w := httptest.NewRecorder()
			handlerOf(n).ServeHTTP(w, r)
			require.Equal(t, http.StatusOK, w.Code)
			require.True(t, utf8.Valid(w.Body.Bytes()))
			require.Less(t, w.Body.Len(), 256<<10)
			require.Equal(t, "nosniff", w.Header().Get("X-Content-Type-Options"))
			if target == "/v1/node" {
				require.True(t, json.Valid(w.Body.Bytes()))
				require.NotContains(t, w.Body.String(), "<")
				continue
			}
			if target == "/" {
				requireNoTagOf(t, w.Body.String(), n)
				continue
			}
			lines = strings.Count(w.Body.String(), "\n")
			require.NotContains(t, w.Body.String(), "\x1b")
			r.URL.RawQuery = rawQuery
			w = httptest.NewRecorder()
			handlerOf(n).ServeHTTP(w, r)
			require.Contains(t, []int{http.StatusOK, http.StatusBadRequest}, w.Code)
		}
		want := 19
		if name != "" {
			want++ // the line of the path
		}
		require.Equal(t, want, lines, "as many as with plain names: no name begins a line")
	})
}

// requireNoTagOf holds that the page of a hostile node has the tags of one whose names are plain.
func requireNoTagOf(t *testing.T, body string, hostile *node) {
	t.Helper()
	plain := aNode()
	plain.status.Volumes[0] = hostile.status.Volumes[0]
	s := &plain.status.Volumes[0]
	s.PodUID, s.OuterName, s.Volume, s.Plugin, s.Phase = "x", "x", "x", "x", hostile.status.Volumes[1].Phase
	s.PodName, s.Err, s.Path = types.NamespacedName{Name: "x"}, errors.New("x"), "x"
	want := do(t, plain, http.MethodGet, "/").Body.String()
	require.Equal(t, strings.Count(want, "<"), strings.Count(body, "<"))
	require.Equal(t, strings.Count(want, `"`), strings.Count(body, `"`))
}

// BenchmarkNode answers for 10,000 volumes in 1,000 pods.
func BenchmarkNode(b *testing.B) {
	n := aNode()
	n.status.Volumes = nil
	for i := range 10_000 {
		n.status.Volumes = append(n.status.Volumes, volumeStatus(fmt.Sprint(i/10), "example.com/disk", volumemanager.PhaseMounted))
	}
	for _, target := range []string{"/", "/v1/node", "/v1/node?limit=100000", "/v1/node.txt"} {
		b.Run(target, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				do(b, n, http.MethodGet, target)
			}
		})
	}
}

// podWith returns the pod of a number, with so many volumes of the fake plugin.
func podWith(namespace string, number, volumes int) *v1.Pod {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprint("pod-", number), UID: types.UID(fmt.Sprint("uid-", number))}}
	pod.Spec.Containers = []v1.Container{{Name: "main"}}
	for j := range volumes {
		name := fmt.Sprint("data-", j)
		pod.Spec.Volumes = append(pod.Spec.Volumes, v1.Volume{Name: name, VolumeSource: v1.VolumeSource{CSI: &v1.CSIVolumeSource{Driver: "fake.example.com"}}})
		pod.Spec.Containers[0].VolumeMounts = append(pod.Spec.Containers[0].VolumeMounts, v1.VolumeMount{Name: name, MountPath: "/" + name})
	}
	return pod
}

// BenchmarkManager answers for a manager that has 10,000 volumes in 1,000 pods mounted.
func BenchmarkManager(b *testing.B) {
	m, mounter := newManager(b)
	ctx, cancel := context.WithCancel(b.Context())
	ended := make(chan error, 1)
	go func() { ended <- m.Run(ctx) }()
	m.PodsComplete()
	for i := range 1000 {
		pod := podWith("shop", i, 10)
		require.NoError(b, m.AddPod(ctx, pod))
		require.NoError(b, m.WaitForAttachAndMount(ctx, pod))
	}
	mounter.ForgetCalls()
	for _, target := range []string{"/", "/v1/node?limit=100000", "/v1/node.txt"} {
		b.Run(target, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				do(b, m, http.MethodGet, target)
			}
		})
	}
	cancel()
	require.NoError(b, <-ended)
}
