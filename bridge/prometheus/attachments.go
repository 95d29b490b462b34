package prometheus

import (
	prom "github.com/prometheus/client_golang/prometheus"

	"github.com/volumekit/volumekit/controller/attachdetach"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

// AttachController is the part of an [attachdetach.Controller] that [NewAttachments] reads. Its methods answer from memory.
type AttachController interface {
	// Status returns every attachment with its phase.
	Status() []attachdetach.AttachmentStatus
	// ForcedDetaches returns the number of detaches by force since the start, by reason.
	ForcedDetaches() map[attachdetach.ForceReason]uint64
	// Hung returns the calls that have outlived their deadlines.
	Hung() []operationexecutor.HungCall
}

// Attachments collects the metrics of the attachments of a cluster. Make it with [NewAttachments] and register it.
type Attachments struct{ controller AttachController }

var _ prom.Collector = (*Attachments)(nil)

// NewAttachments returns a collector for a controller of attachments. It reads nothing before it is scraped.
func NewAttachments(controller AttachController) *Attachments {
	return &Attachments{controller: controller}
}

var (
	totalAttachments = prom.NewDesc("attachdetach_controller_total_volumes", "Number of volumes in A/D Controller", []string{"plugin_name", "state"}, nil)
	forcedDetaches   = prom.NewDesc("attachdetach_controller_forced_detaches", "Number of times the A/D Controller performed a forced detach", []string{"reason"}, nil)
	attachedVolumes  = prom.NewDesc("storage_count_attachable_volumes_in_use", "Measure number of volumes in use", []string{"node", "volume_plugin"}, nil)
	attachments      = prom.NewDesc("volumekit_attachments", "Attachments, by plugin and phase.", []string{"plugin_name", "phase"}, nil)
	failingAttaches  = prom.NewDesc("volumekit_attachments_failing", "Attachments whose last operation failed.", []string{"plugin_name"}, nil)
	hungAttaches     = prom.NewDesc("volumekit_controller_hung_calls", "Calls of plugins by the controller that have outlived their deadlines and still run.", []string{"plugin_name"}, nil)

	attachmentDescriptions = []*prom.Desc{totalAttachments, forcedDetaches, attachedVolumes, attachments, failingAttaches, hungAttaches}
)

// forceReasons are all reasons of a forced detach. Each has a counter from the start: an alert on its increase would miss the first
// detach if the counter began with it.
var forceReasons = []attachdetach.ForceReason{attachdetach.ForcedByTimeout, attachdetach.ForcedByFence}

// Describe implements prom.Collector.
func (a *Attachments) Describe(descriptions chan<- *prom.Desc) {
	describe(descriptions, attachmentDescriptions)
}

// Collect implements prom.Collector. It reads the controller's memory.
func (a *Attachments) Collect(metrics chan<- prom.Metric) {
	states, byPhase, byNode, failed := counts[pluginAnd]{}, counts[pluginAnd]{}, counts[pluginAnd]{}, counts[string]{}
	for _, s := range a.controller.Status() {
		plugin, _, _ := volume.SplitUniqueName(s.Volume) // An invalid unique name has no plugin.
		plugin = label(plugin)
		byPhase[pluginAnd{plugin, string(s.Phase)}]++
		if s.Wanted {
			states[pluginAnd{plugin, "desired_state_of_world"}]++
		}
		if s.Err != nil {
			failed[plugin]++
		}
		if s.Phase != attachdetach.PhaseRequested && s.Phase != attachdetach.PhaseAttaching {
			states[pluginAnd{plugin, "actual_state_of_world"}]++
			byNode[pluginAnd{plugin, label(string(s.Node))}]++
		}
	}
	states.collect(metrics, totalAttachments, pluginAnd.labels)
	byPhase.collect(metrics, attachments, pluginAnd.labels)
	byNode.collect(metrics, attachedVolumes, func(k pluginAnd) []string { return []string{k.label, k.plugin} })
	failed.collect(metrics, failingAttaches, oneLabel)
	forced := a.controller.ForcedDetaches()
	for _, reason := range forceReasons {
		metrics <- prom.MustNewConstMetric(forcedDetaches, prom.CounterValue, float64(forced[reason]), string(reason))
	}
	collectHung(metrics, hungAttaches, a.controller.Hung())
}
