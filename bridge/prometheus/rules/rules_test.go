package rules

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	prom "github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/annotations"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/volumekit/volumekit/bridge/prometheus"
	"github.com/volumekit/volumekit/controller/attachdetach"
	"github.com/volumekit/volumekit/controller/persistentvolume"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager"
)

// TestEveryAlertFiresWhenItShould evaluates each alert on a healthy system, where it must be silent, and on one in which
// everything that is watched is wrong.
func TestEveryAlertFiresWhenItShould(t *testing.T) {
	healthy, sick := record(t, newWorld(false)), record(t, newWorld(true))
	for name, expr := range alerts(t) {
		t.Run(name, func(t *testing.T) {
			require.Empty(t, healthy.eval(t, expr), "fires on a healthy system: %s", expr)
			if name == "ManagerNotRunning" || name == "PodsNotComplete" || name == "AgentGone" {
				return // TestAlertsAboutTheManager, TestAnAgentThatIsGoneIsNoticed
			}
			require.NotEmpty(t, sick.eval(t, expr), "is silent: %s", expr)
		})
	}
}

func TestAlertsAboutTheManager(t *testing.T) {
	stopped, early := newWorld(false), newWorld(false)
	stopped.status.Running = false
	early.status.PodsComplete = false
	require.NotEmpty(t, record(t, stopped).eval(t, alerts(t)["ManagerNotRunning"]))
	require.NotEmpty(t, record(t, early).eval(t, alerts(t)["PodsNotComplete"]))
}

// An agent that is gone has no metric that could say so.
func TestAnAgentThatIsGoneIsNoticed(t *testing.T) {
	gone := record(t, newWorld(false))
	scraped := gone.end
	gone.end = scraped.Add(30 * time.Minute)
	found := gone.eval(t, alerts(t)["AgentGone"])
	require.Len(t, found, 1)
	require.Equal(t, "node-1:9100", found[0].Metric.Get("instance"))
	gone.end = scraped.Add(2 * time.Hour)
	require.Empty(t, gone.eval(t, alerts(t)["AgentGone"]), "a node that was removed is not missed for ever")
}

// The first detach by force since the start is one too many, and must not begin its own counter.
func TestTheFirstForcedDetachIsNoticed(t *testing.T) {
	w := newWorld(false)
	w.forcedAt = 40
	require.NotEmpty(t, record(t, w).eval(t, alerts(t)["VolumesDetachedByForce"]))
}

// TestEveryPanelShowsSomething evaluates each expression of the dashboard.
func TestEveryPanelShowsSomething(t *testing.T) {
	sick := record(t, newWorld(true))
	content, err := os.ReadFile("dashboard.json")
	require.NoError(t, err)
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	require.NoError(t, json.Unmarshal(content, &dashboard))
	require.NotEmpty(t, dashboard.Panels)
	for _, panel := range dashboard.Panels {
		require.NotEmpty(t, panel.Targets, panel.Title)
		for _, target := range panel.Targets {
			require.NotEmpty(t, sick.eval(t, target.Expr), "%s: %s", panel.Title, target.Expr)
		}
	}
}

// alerts returns the expressions of alerts.yml by name.
func alerts(t *testing.T) map[string]string {
	t.Helper()
	content, err := os.ReadFile("alerts.yml")
	require.NoError(t, err)
	var file struct {
		Groups []struct {
			Rules []struct{ Alert, Expr string }
		}
	}
	require.NoError(t, yaml.Unmarshal(content, &file))
	found := map[string]string{}
	for _, group := range file.Groups {
		for _, rule := range group.Rules {
			found[rule.Alert] = rule.Expr
		}
	}
	require.NotEmpty(t, found)
	return found
}

// recording is what Prometheus has after an hour of scrapes, by the text of the labels. It is kept in memory: Prometheus' own storage
// takes minutes to compile.
type recording struct {
	storage.MockQuerier

	series map[string]*promql.Series
	engine *promql.Engine
	end    time.Time
}

// record scrapes a world once a minute for an hour, during which its counters grow.
func record(t *testing.T, w *world) recording {
	t.Helper()
	registry := prom.NewRegistry()
	observer := prometheus.NewObserver()
	registry.MustRegister(observer, prometheus.NewNode(w, prometheus.NodeOptions{}), prometheus.NewAttachments(attachments{w}),
		prometheus.NewClaims(prometheus.ClaimsOptions{Controller: w}))
	engine := promql.NewEngine(promql.EngineOpts{MaxSamples: 1 << 20, Timeout: time.Minute})
	t.Cleanup(func() { require.NoError(t, engine.Close()) })
	r := recording{series: map[string]*promql.Series{}, engine: engine, end: time.Unix(3600, 0)}
	for at := time.Unix(0, 0); !at.After(r.end); at = at.Add(time.Minute) {
		w.work(observer)
		families, err := registry.Gather()
		require.NoError(t, err)
		for _, family := range families {
			for _, m := range family.GetMetric() {
				for name, value := range samples(family.GetName(), m) {
					r.add(seriesOf(name, m), promql.FPoint{T: at.UnixMilli(), F: value})
				}
			}
		}
	}
	return r
}

func (r recording) add(metric labels.Labels, point promql.FPoint) {
	series, ok := r.series[metric.String()]
	if !ok {
		series = &promql.Series{Metric: metric}
		r.series[metric.String()] = series
	}
	series.Floats = append(series.Floats, point)
}

// Querier implements storage.Queryable.
func (r recording) Querier(int64, int64) (storage.Querier, error) { return &r, nil }

// Select implements storage.Querier.
func (r *recording) Select(_ context.Context, _ bool, _ *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
	found := &seriesSet{}
	for _, name := range slices.Sorted(maps.Keys(r.series)) {
		series := r.series[name]
		if !slices.ContainsFunc(matchers, func(m *labels.Matcher) bool { return !m.Matches(series.Metric.Get(m.Name)) }) {
			found.left = append(found.left, promql.NewStorageSeries(*series))
		}
	}
	return found
}

// seriesSet is what a query has selected.
type seriesSet struct {
	at   storage.Series
	left []storage.Series
}

func (s *seriesSet) Next() bool {
	if len(s.left) == 0 {
		return false
	}
	s.at, s.left = s.left[0], s.left[1:]
	return true
}

func (s *seriesSet) At() storage.Series                { return s.at }
func (s *seriesSet) Err() error                        { return nil }
func (s *seriesSet) Warnings() annotations.Annotations { return nil }

func (r recording) eval(t *testing.T, expr string) promql.Vector {
	t.Helper()
	query, err := r.engine.NewInstantQuery(t.Context(), r, nil, expr, r.end)
	require.NoError(t, err, expr)
	defer query.Close()
	result, err := query.Exec(t.Context()).Vector()
	require.NoError(t, err, expr)
	for _, sample := range result {
		require.False(t, math.IsNaN(sample.F), "%s is not a number for %s", expr, sample.Metric)
	}
	return result
}

// samples returns the values of a metric by the names of their series, with the bound of a bucket behind a bar.
func samples(name string, m *dto.Metric) map[string]float64 {
	switch {
	case m.Gauge != nil:
		return map[string]float64{name: m.GetGauge().GetValue()}
	case m.Counter != nil:
		return map[string]float64{name: m.GetCounter().GetValue()}
	}
	h := m.GetHistogram()
	values := map[string]float64{name + "_count": float64(h.GetSampleCount()), name + "_sum": h.GetSampleSum(), name + "_bucket|+Inf": float64(h.GetSampleCount())}
	for _, bucket := range h.GetBucket() {
		values[fmt.Sprintf("%s_bucket|%g", name, bucket.GetUpperBound())] = float64(bucket.GetCumulativeCount())
	}
	return values
}

func seriesOf(name string, m *dto.Metric) labels.Labels {
	name, bound, isBucket := strings.Cut(name, "|")
	b := labels.NewBuilder(labels.EmptyLabels()).Set("__name__", name).Set("instance", "node-1:9100")
	if isBucket {
		b.Set("le", bound)
	}
	for _, l := range m.GetLabel() {
		b.Set(l.GetName(), l.GetValue())
	}
	return b.Labels()
}

// world is a node and its controllers, of which all that the alerts watch is right or wrong.
type world struct {
	sick   bool
	status volumemanager.NodeStatus
	stats  []volumemanager.VolumeStats
	forced map[attachdetach.ForceReason]uint64
	// forcedAt is the scrape at which a healthy world has its only forced detach; zero for none.
	forcedAt, scrapes int
}

func newWorld(sick bool) *world {
	w := &world{sick: sick, forced: map[attachdetach.ForceReason]uint64{}, status: volumemanager.NodeStatus{Running: true, PodsComplete: true}}
	v := volumemanager.VolumeStatus{Plugin: "example.com/disk", Phase: volumemanager.PhaseMounted, Wanted: true}
	capacity, available, inodes, inodesFree := uint64(1000), uint64(500), uint64(100), uint64(50)
	if sick {
		v.Err = errors.New("input/output error")
		v.Conditions = []volumemanager.Condition{{HealthCondition: volume.HealthCondition{Status: volume.HealthAbnormal, Reason: "ReadOnlyFilesystem"}}}
		available, inodesFree = 10, 1
		w.status.Orphans, w.status.Damaged, w.status.LostData = make([]volumemanager.Orphan, 1), make([]volumemanager.DamagedRecord, 1), make([]volumemanager.LostData, 1)
	}
	used := capacity - available
	w.status.Volumes = []volumemanager.VolumeStatus{v}
	w.stats = []volumemanager.VolumeStats{{
		Claim: types.NamespacedName{Namespace: "shop", Name: "data"}, Plugin: v.Plugin, Conditions: v.Conditions,
		CapacityBytes: &capacity, AvailableBytes: &available, UsedBytes: &used, Inodes: &inodes, InodesFree: &inodesFree,
	}}
	return w
}

// work is what happens between two scrapes.
func (w *world) work(o *prometheus.Observer) {
	info := operationexecutor.OperationInfo{Kind: operationexecutor.OpMount, PluginName: "example.com/disk"}
	o.OperationStarted(info)
	o.OperationStepped(info, operationexecutor.Step{Name: "SetUp", Duration: time.Millisecond})
	result := operationexecutor.Result{Class: operationexecutor.Done, Duration: time.Millisecond}
	if w.scrapes++; w.sick || w.scrapes == w.forcedAt {
		w.forced[attachdetach.ForcedByTimeout]++
	}
	if w.sick {
		result = operationexecutor.Result{Class: operationexecutor.Uncertain, Err: w.status.Volumes[0].Err, Duration: time.Minute}
	}
	o.OperationFinished(info, result)
}

func (w *world) Status() volumemanager.NodeStatus                { return w.status }
func (w *world) Stats(time.Duration) []volumemanager.VolumeStats { return w.stats }

func (w *world) Hung() []operationexecutor.HungCall {
	if !w.sick {
		return nil
	}
	return []operationexecutor.HungCall{{Operation: operationexecutor.OperationInfo{PluginName: "example.com/disk"}}}
}

func (w *world) Pending() []persistentvolume.PendingClaim {
	if !w.sick {
		return []persistentvolume.PendingClaim{{Reason: "WaitForFirstConsumer"}}
	}
	return []persistentvolume.PendingClaim{{Reason: persistentvolume.ReasonFailedBinding}}
}

// attachments is the controller of attachments of a world.
type attachments struct{ *world }

func (a attachments) Status() []attachdetach.AttachmentStatus {
	s := attachdetach.AttachmentStatus{Volume: v1.UniqueVolumeName("example.com/disk/a"), Node: "node-1", Phase: attachdetach.PhaseInUse, Wanted: true}
	if a.sick {
		s.Err = errors.New("no such volume")
	}
	return []attachdetach.AttachmentStatus{s}
}

func (a attachments) ForcedDetaches() map[attachdetach.ForceReason]uint64 {
	return a.forced
}
