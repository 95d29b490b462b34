package inspect

import (
	"errors"
	"fmt"
	"html"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager"
)

// operation tells a history of one whole operation, or of one that runs when there is no result.
func operation(h *History, o operationexecutor.OperationInfo, result *operationexecutor.Result, steps ...operationexecutor.Step) {
	h.OperationStarted(o)
	for _, s := range steps {
		h.OperationStepped(o, s)
	}
	if result != nil {
		h.OperationFinished(o, *result)
	}
}

func info(kind operationexecutor.OperationKind, name, pod string, started time.Time) operationexecutor.OperationInfo {
	return operationexecutor.OperationInfo{Kind: kind, VolumeName: v1.UniqueVolumeName(name), PodName: volume.UniquePodName(pod), Started: started}
}

// aHistory is that of the pod's volume b: attached, a set-up that failed, one that runs; and another pod's.
func aHistory() *History {
	h := NewHistory(HistoryOptions{})
	const name = "example.com/disk/b"
	operation(h, info(operationexecutor.OpAttach, name, "", began.Add(time.Second)), &operationexecutor.Result{Duration: 1500 * time.Millisecond})
	operation(h, info(operationexecutor.OpMount, name, "uid-b", began.Add(3*time.Second)),
		&operationexecutor.Result{Duration: 20 * time.Millisecond, Err: errors.New("no space left")},
		operationexecutor.Step{Name: "MountDevice", Started: began.Add(3 * time.Second), Duration: 12 * time.Millisecond},
		operationexecutor.Step{Name: "SetUp", Duration: 8 * time.Microsecond, Err: errors.New("no space left")})
	operation(h, info(operationexecutor.OpMount, name, "uid-other", began.Add(4*time.Second)), &operationexecutor.Result{})
	operation(h, info(operationexecutor.OpMount, name, "uid-b", began.Add(5*time.Second)), nil)
	return h
}

func TestATimeLineSaysWhatWasDoneForAVolume(t *testing.T) {
	n := aNode()
	n.history = aHistory()
	s := &n.status.Volumes[1]
	s.WantedSince, s.ResolvedSince = began, began.Add(500*time.Millisecond)

	v := read(t, n, "/v1/node?pod=b").Volumes[0]
	assert.Equal(t, began, v.WantedSince)
	require.Len(t, v.Operations, 3, "another pod's operation is none of this one's")
	assert.Equal(t, Operation{Kind: string(operationexecutor.OpAttach), Started: began.Add(time.Second), Seconds: 1.5}, v.Operations[0])
	assert.Equal(t, []OperationStep{
		{Name: "MountDevice", Started: began.Add(3 * time.Second), Seconds: 0.012}, {Name: "SetUp", Seconds: 8e-6, Error: "no space left"},
	}, v.Operations[1].Steps)
	assert.Equal(t, "no space left", v.Operations[1].Error)
	assert.True(t, v.Operations[2].Running)

	lines := `
    wanted 2026-01-02T03:04:05Z
    resolved +500ms
    ` + string(operationexecutor.OpAttach) + ` +1s, took 1.5s
    ` + string(operationexecutor.OpMount) + ` +3s, took 20ms: no space left
        MountDevice 12ms
        SetUp 8µs: no space left
    ` + string(operationexecutor.OpMount) + ` +5s, running
`
	assert.Contains(t, do(t, n, http.MethodGet, "/v1/node.txt?pod=b").Body.String(), lines)
	assert.NotContains(t, do(t, n, http.MethodGet, "/v1/node.txt").Body.String(), "took 1.5s", "the table of a node stays short")
	body := html.UnescapeString(do(t, n, http.MethodGet, "/").Body.String())
	for _, part := range []string{"<details", "resolved +500ms", "+1s, took 1.5s", `<span class="bad">no space left</span>`, "MountDevice 12ms", "+5s, running"} {
		_, after, found := strings.Cut(body, part)
		require.True(t, found, part)
		body = after
	}
}

func TestAHistoryForgetsTheOldest(t *testing.T) {
	h := NewHistory(HistoryOptions{Volumes: 2})
	for i := range 6 {
		operation(h, info(operationexecutor.OpMount, "a", "p", began.Add(time.Duration(i)*time.Second)), &operationexecutor.Result{})
	}
	operation(h, info(operationexecutor.OpMount, "b", "p", began), &operationexecutor.Result{})
	many := make([]operationexecutor.Step, 2*maxSteps)
	operation(h, info(operationexecutor.OpUnmount, "a", "p", began.Add(time.Minute)), nil, many...)
	a := h.of("a", "p")
	require.Len(t, a, maxOperations)
	assert.Equal(t, began.Add(3*time.Second), a[0].Started, "the oldest operations of a volume are forgotten")
	assert.Len(t, a[3].Steps, maxSteps)

	operation(h, info(operationexecutor.OpMount, "c", "p", began), nil)
	assert.Empty(t, h.of("b", "p"), "its last operation began before a's")
	assert.Len(t, h.of("a", "p"), maxOperations)
	h.OperationStepped(info(operationexecutor.OpMount, "b", "p", began), operationexecutor.Step{})
	h.OperationFinished(info(operationexecutor.OpMount, "b", "p", began), operationexecutor.Result{})
	assert.Empty(t, h.of("b", "p"), "what comes late for a forgotten one changes nothing")
	assert.Len(t, h.known, h.order.Len())
	assert.Empty(t, (*History)(nil).of("a", "p"))

	a[3].Steps[0].Name = "changed"
	assert.Empty(t, h.of("a", "p")[3].Steps[0].Name, "an answer is a copy")
}

func TestUsageIsShownWhenItIsAskedFor(t *testing.T) {
	n := aNode()
	used, capacity, inodes := uint64(1536), uint64(3<<30), uint64(12)
	n.stats = map[types.UID][]volumemanager.VolumeStats{
		"uid-a": {{OuterName: "data", Volume: "example.com/disk/a", Time: began, UsedBytes: &used, CapacityBytes: &capacity, Inodes: &inodes, InodesUsed: &used}},
		"uid-b": {{OuterName: "data", Volume: "example.com/disk/b", Err: errors.New("too slow")}},
	}
	assert.Nil(t, read(t, n, "/v1/node?pod=a").Volumes[0].Usage)
	assert.Equal(t, 1, n.reads, "nothing is measured that was not asked for")
	assert.Equal(t, &Usage{At: began, UsedBytes: &used, CapacityBytes: &capacity, Inodes: &inodes, InodesUsed: &used},
		read(t, n, "/v1/node?pod=a&usage=1").Volumes[0].Usage)
	assert.Contains(t, do(t, n, http.MethodGet, "/v1/node.txt?pod=a&usage=1").Body.String(), "1.5 KiB of 3 GiB used at 2026-01-02T03:04:05Z")
	body := do(t, n, http.MethodGet, "/?usage=1").Body.String()
	assert.Contains(t, body, "1.5 KiB of 3 GiB used, unknown available; 1536 of 12 inodes")
	assert.Contains(t, body, "not measured: too slow")
	assert.NotContains(t, body, "Show how full")
	assert.Contains(t, do(t, n, http.MethodGet, "/").Body.String(), `href="?limit=100&amp;offset=0&amp;usage=1">Show how full`)
}

// BenchmarkHistory tells a full history of an operation of six steps.
func BenchmarkHistory(b *testing.B) {
	h := NewHistory(HistoryOptions{})
	var infos []operationexecutor.OperationInfo
	for i := range 5000 {
		infos = append(infos, info(operationexecutor.OpMount, fmt.Sprint("example.com/disk/", i), "p", began))
	}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		o := infos[i%len(infos)]
		h.OperationStarted(o)
		for range 6 {
			h.OperationStepped(o, operationexecutor.Step{Name: "SetUp", Started: began, Duration: time.Millisecond})
		}
		h.OperationFinished(o, operationexecutor.Result{Duration: time.Millisecond})
		i++
	}
}
