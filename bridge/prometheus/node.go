package prometheus

import (
	"cmp"
	"slices"
	"strings"
	"time"

	prom "github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager"
)

// defaultMaxAge is kubelet's interval of volume statistics.
const defaultMaxAge = time.Minute

// Manager is the part of a [volumemanager.Manager] that [NewNode] reads. Its methods answer from memory.
type Manager interface {
	// Status returns every volume with its phase.
	Status() volumemanager.NodeStatus
	// Stats returns the last measurements, and starts new ones for those older than maxAge.
	Stats(maxAge time.Duration) []volumemanager.VolumeStats
	// Hung returns the calls that have outlived their deadlines.
	Hung() []operationexecutor.HungCall
}

// NodeOptions configures a [Node]. The zero value is useful.
type NodeOptions struct {
	// MaxAge is the age of a measurement at which a scrape starts a new one. The scrape does not wait for it: the next
	// scrape returns it. Zero means one minute, as in kubelet.
	MaxAge time.Duration
}

// Node collects the metrics of the volumes of one node. Make it with [NewNode] and register it. If a process has
// several managers, register each node with its own labels, with prom.WrapRegistererWith.
type Node struct {
	manager Manager
	maxAge  time.Duration
}

var _ prom.Collector = (*Node)(nil)

// NewNode returns a collector for a manager. It reads nothing before it is scraped.
func NewNode(manager Manager, options NodeOptions) *Node {
	maxAge := options.MaxAge
	if maxAge == 0 {
		maxAge = defaultMaxAge
	}
	return &Node{manager: manager, maxAge: maxAge}
}

var (
	claimLabels = []string{"namespace", "persistentvolumeclaim"}

	capacityBytes  = prom.NewDesc("kubelet_volume_stats_capacity_bytes", "Capacity in bytes of the volume", claimLabels, nil)
	availableBytes = prom.NewDesc("kubelet_volume_stats_available_bytes", "Number of available bytes in the volume", claimLabels, nil)
	usedBytes      = prom.NewDesc("kubelet_volume_stats_used_bytes", "Number of used bytes in the volume", claimLabels, nil)
	inodes         = prom.NewDesc("kubelet_volume_stats_inodes", "Maximum number of inodes in the volume", claimLabels, nil)
	inodesFree     = prom.NewDesc("kubelet_volume_stats_inodes_free", "Number of free inodes in the volume", claimLabels, nil)
	inodesUsed     = prom.NewDesc("kubelet_volume_stats_inodes_used", "Number of used inodes in the volume", claimLabels, nil)
	abnormal       = prom.NewDesc("kubelet_volume_stats_health_status_abnormal", "1 if the volume is unhealthy, 0 if it is not", claimLabels, nil)

	totalVolumes = prom.NewDesc("volume_manager_total_volumes", "Number of volumes in Volume Manager", []string{"plugin_name", "state"}, nil)

	phases     = prom.NewDesc("volumekit_volumes", "Volumes of pods, by plugin and phase. A volume of two pods counts twice.", []string{"plugin_name", "phase"}, nil)
	failing    = prom.NewDesc("volumekit_volumes_failing", "Volumes of pods whose last operation failed.", []string{"plugin_name"}, nil)
	conditions = prom.NewDesc("volumekit_volume_conditions", "Conditions of volumes, by plugin and reason.", []string{"plugin_name", "reason"}, nil)
	unmeasured = prom.NewDesc("volumekit_volume_stats_failing", "Volumes whose last measurement failed.", []string{"plugin_name"}, nil)
	hungCalls  = prom.NewDesc("volumekit_hung_calls", "Calls of plugins that have outlived their deadlines and still run.", []string{"plugin_name"}, nil)
	orphans    = prom.NewDesc("volumekit_orphans", "Mounts, directories and devices below the root that no record explains.", nil, nil)
	damaged    = prom.NewDesc("volumekit_damaged_records", "Records that could not be used, at this start or an earlier one.", nil, nil)
	lostData   = prom.NewDesc("volumekit_lost_data", "Unmounts after which written data may be lost.", nil, nil)
	reused     = prom.NewDesc("volumekit_reused_volumes_total", "Set-ups of an earlier manager that pods use as they were found.", nil, nil)
	running    = prom.NewDesc("volumekit_manager_running", "1 while the manager works, 0 before and after.", nil, nil)
	complete   = prom.NewDesc("volumekit_manager_pods_complete", "1 once all pods of the node have been added.", nil, nil)

	nodeDescriptions = []*prom.Desc{
		capacityBytes, availableBytes, usedBytes, inodes, inodesFree, inodesUsed, abnormal, totalVolumes,
		phases, failing, conditions, unmeasured, hungCalls, orphans, damaged, lostData, reused, running, complete,
	}
)

// Describe implements prom.Collector.
func (n *Node) Describe(descriptions chan<- *prom.Desc) { describe(descriptions, nodeDescriptions) }

// Collect implements prom.Collector. It reads the manager's memory.
func (n *Node) Collect(metrics chan<- prom.Metric) {
	status := n.manager.Status()
	collectVolumes(metrics, status.Volumes)
	gauge(metrics, orphans, len(status.Orphans))
	gauge(metrics, damaged, len(status.Damaged))
	gauge(metrics, lostData, len(status.LostData))
	truth(metrics, running, status.Running)
	truth(metrics, complete, status.PodsComplete)
	metrics <- prom.MustNewConstMetric(reused, prom.CounterValue, float64(status.Reused))
	collectHung(metrics, hungCalls, n.manager.Hung())
	collectStats(metrics, n.manager.Stats(n.maxAge))
}

// pluginAnd is a plugin and one more label.
type pluginAnd struct{ plugin, label string }

func (p pluginAnd) labels() []string { return []string{p.plugin, p.label} }

// collectVolumes counts volumes by plugin, phase, failure and condition. As in Kubernetes, volume_manager_total_volumes counts a
// volume once for each pod.
func collectVolumes(metrics chan<- prom.Metric, volumes []volumemanager.VolumeStatus) {
	states, byPhase, byReason, failed := counts[pluginAnd]{}, counts[pluginAnd]{}, counts[pluginAnd]{}, counts[string]{}
	for i := range volumes {
		v := &volumes[i]
		byPhase[pluginAnd{v.Plugin, string(v.Phase)}]++
		if v.Wanted {
			states[pluginAnd{v.Plugin, "desired_state_of_world"}]++
		}
		if v.Phase == volumemanager.PhaseMounted || v.Phase == volumemanager.PhaseUncertain {
			states[pluginAnd{v.Plugin, "actual_state_of_world"}]++
		}
		if v.Err != nil {
			failed[v.Plugin]++
		}
		for _, c := range v.Conditions {
			byReason[pluginAnd{v.Plugin, reasonLabel(c.Reason)}]++
		}
	}
	states.collect(metrics, totalVolumes, pluginAnd.labels)
	byPhase.collect(metrics, phases, pluginAnd.labels)
	byReason.collect(metrics, conditions, pluginAnd.labels)
	failed.collect(metrics, failing, oneLabel)
}

// otherReason is the label of a reason that is not one word: a plugin that writes a path or a message as the reason
// would make series without end.
const otherReason = "Other"

// reasonLabel returns the reason of a condition, which a plugin may have made.
func reasonLabel(reason string) string {
	const longest = 64
	isPart := func(r rune) bool { return 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' }
	if len(reason) > longest || strings.ContainsFunc(reason, func(r rune) bool { return !isPart(r) }) {
		return otherReason
	}
	return reason
}

// collectStats reports the measurements of volumes with claims. Each claim has one series, even if several pods use it.
func collectStats(metrics chan<- prom.Metric, stats []volumemanager.VolumeStats) {
	failed := counts[string]{}
	for i := range stats {
		if s := &stats[i]; s.Err != nil {
			failed[s.Plugin]++
		}
	}
	for _, c := range claimsOf(stats) {
		c.collect(metrics)
	}
	failed.collect(metrics, unmeasured, oneLabel)
}

// claimStats is what is known of the volume of a claim.
type claimStats struct {
	namespace, name string
	// latest is the latest measurement for any pod. abnormal says that the volume is unhealthy for any pod.
	latest   *volumemanager.VolumeStats
	abnormal bool
}

// compare orders by claim. The registry sorts much faster what is sorted already.
func (c claimStats) compare(other claimStats) int {
	return cmp.Or(cmp.Compare(c.namespace, other.namespace), cmp.Compare(c.name, other.name))
}

// claimsOf returns the claims of volumes, each once, by name.
func claimsOf(stats []volumemanager.VolumeStats) []claimStats {
	all := make([]claimStats, 0, len(stats))
	for i := range stats {
		if s := &stats[i]; s.Claim.Name != "" {
			all = append(all, claimStats{namespace: label(s.Claim.Namespace), name: label(s.Claim.Name), latest: s, abnormal: isAbnormal(s)})
		}
	}
	slices.SortFunc(all, claimStats.compare)
	claims := all[:0]
	for _, c := range all {
		last := len(claims) - 1
		if last < 0 || claims[last].compare(c) != 0 {
			claims = append(claims, c)
			continue
		}
		claims[last].abnormal = claims[last].abnormal || c.abnormal
		if c.latest.Time.After(claims[last].latest.Time) {
			claims[last].latest = c.latest
		}
	}
	return claims
}

func isAbnormal(s *volumemanager.VolumeStats) bool {
	return slices.ContainsFunc(s.Conditions, func(c volumemanager.Condition) bool { return c.Status == volume.HealthAbnormal })
}

// collect sends the gauges of a claim. They share their labels and one piece of memory.
func (c claimStats) collect(metrics chan<- prom.Metric) {
	labels := prom.MakeLabelPairs(capacityBytes, []string{c.namespace, c.name})
	s := c.latest
	values := [...]struct {
		description *prom.Desc
		value       *uint64
	}{
		{capacityBytes, s.CapacityBytes}, {availableBytes, s.AvailableBytes}, {usedBytes, s.UsedBytes},
		{inodes, s.Inodes}, {inodesFree, s.InodesFree}, {inodesUsed, s.InodesUsed},
	}
	var gauges [len(values) + 1]claimGauge
	for i, v := range values {
		if v.value != nil {
			metrics <- gauges[i].set(v.description, labels, float64(*v.value))
		}
	}
	unhealthy := 0.0
	if c.abnormal {
		unhealthy = 1
	}
	metrics <- gauges[len(values)].set(abnormal, labels, unhealthy)
}

// claimGauge is one value of a claim. It needs less memory than a gauge of the Prometheus library, which has labels of its own.
type claimGauge struct {
	description *prom.Desc
	labels      []*dto.LabelPair // shared and never changed
	value       float64
	gauge       dto.Gauge
}

// set gives the gauge its value. It returns g.
func (g *claimGauge) set(description *prom.Desc, labels []*dto.LabelPair, value float64) *claimGauge {
	g.description, g.labels, g.value = description, labels, value
	g.gauge.Value = &g.value
	return g
}

// Desc implements prom.Metric.
func (g *claimGauge) Desc() *prom.Desc { return g.description }

// Write implements prom.Metric.
func (g *claimGauge) Write(to *dto.Metric) error {
	to.Label, to.Gauge = g.labels, &g.gauge
	return nil
}
