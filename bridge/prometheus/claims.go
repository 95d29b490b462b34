package prometheus

import (
	prom "github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/controller/persistentvolume"
	"github.com/volumekit/volumekit/volume"
)

// Lister lists objects from memory. [store.Mirror] is one.
type Lister[T any] interface {
	// All returns every object. The objects are shared and must not be changed.
	All() []T
}

// ClaimController is the part of a [persistentvolume.Controller] that [NewClaims] reads. Its method answers from memory.
type ClaimController interface {
	// Pending returns the claims that have no volume, with the reasons.
	Pending() []persistentvolume.PendingClaim
}

// ClaimsOptions configures [NewClaims]. If a field is nil, its metrics are omitted.
type ClaimsOptions struct {
	// Claims lists the claims, and Volumes the PersistentVolumes. Give it mirrors that the program follows.
	Claims  Lister[*v1.PersistentVolumeClaim]
	Volumes Lister[*v1.PersistentVolume]
	// Plugins finds the plugin of a PersistentVolume. If it is nil, the plugin in the metric
	// pv_collector_total_pv_count is N/A.
	Plugins PluginFinder
	// Controller knows why claims wait.
	Controller ClaimController
}

// PluginFinder finds the plugin of a volume. [volume.VolumePluginMgr] is one.
type PluginFinder interface {
	// FindPluginBySpec returns the plugin that supports a volume.
	FindPluginBySpec(spec *volume.Spec) (volume.VolumePlugin, error)
}

// Claims collects the metrics of claims and PersistentVolumes. Make it with [NewClaims] and register it.
type Claims struct{ options ClaimsOptions }

var _ prom.Collector = (*Claims)(nil)

// NewClaims returns a collector of claims and volumes. It reads nothing before it is scraped.
func NewClaims(options ClaimsOptions) *Claims { return &Claims{options: options} }

// unknownPlugin is the plugin of a PersistentVolume that no plugin supports, as in Kubernetes 1.36.
const unknownPlugin = "N/A"

var (
	classLabels   = []string{"storage_class"}
	pvcLabels     = []string{"namespace", "storage_class", "volume_attributes_class"}
	totalPVs      = prom.NewDesc("pv_collector_total_pv_count", "Gauge measuring total number of persistent volumes", []string{"plugin_name", "volume_mode"}, nil)
	boundPVs      = prom.NewDesc("pv_collector_bound_pv_count", "Gauge measuring number of persistent volume currently bound", classLabels, nil)
	unboundPVs    = prom.NewDesc("pv_collector_unbound_pv_count", "Gauge measuring number of persistent volume currently unbound", classLabels, nil)
	boundPVCs     = prom.NewDesc("pv_collector_bound_pvc_count", "Gauge measuring number of persistent volume claim currently bound", pvcLabels, nil)
	unboundPVCs   = prom.NewDesc("pv_collector_unbound_pvc_count", "Gauge measuring number of persistent volume claim currently unbound", pvcLabels, nil)
	pendingClaims = prom.NewDesc("volumekit_pending_claims", "Claims that have no volume, by reason.", []string{"reason"}, nil)

	claimDescriptions = []*prom.Desc{totalPVs, boundPVs, unboundPVs, boundPVCs, unboundPVCs, pendingClaims}
)

// Describe implements prom.Collector.
func (c *Claims) Describe(descriptions chan<- *prom.Desc) { describe(descriptions, claimDescriptions) }

// Collect implements prom.Collector. It reads mirrors.
func (c *Claims) Collect(metrics chan<- prom.Metric) {
	if c.options.Volumes != nil {
		c.collectVolumes(metrics)
	}
	if c.options.Claims != nil {
		collectClaims(metrics, c.options.Claims.All())
	}
	if c.options.Controller != nil {
		byReason := counts[string]{}
		for _, pending := range c.options.Controller.Pending() {
			byReason[label(pending.Reason)]++
		}
		byReason.collect(metrics, pendingClaims, oneLabel)
	}
}

func (c *Claims) collectVolumes(metrics chan<- prom.Metric) {
	total, bound, unbound := counts[pluginAnd]{}, counts[string]{}, counts[string]{}
	for _, pv := range c.options.Volumes.All() {
		mode := v1.PersistentVolumeFilesystem
		if pv.Spec.VolumeMode != nil {
			mode = *pv.Spec.VolumeMode
		}
		total[pluginAnd{c.pluginOf(pv), label(string(mode))}]++
		class := label(pv.Spec.StorageClassName)
		if pv.Status.Phase == v1.VolumeBound {
			bound[class]++
		} else {
			unbound[class]++
		}
	}
	total.collect(metrics, totalPVs, pluginAnd.labels)
	bound.collect(metrics, boundPVs, oneLabel)
	unbound.collect(metrics, unboundPVs, oneLabel)
}

func (c *Claims) pluginOf(pv *v1.PersistentVolume) string {
	if c.options.Plugins == nil {
		return unknownPlugin
	}
	plugin, err := c.options.Plugins.FindPluginBySpec(volume.NewSpecFromPersistentVolume(pv, false))
	if err != nil {
		return unknownPlugin
	}
	return plugin.GetPluginName()
}

// claimClass holds the labels by which claims are counted.
type claimClass struct{ namespace, class, attributes string }

func (c claimClass) labels() []string { return []string{c.namespace, c.class, c.attributes} }

func collectClaims(metrics chan<- prom.Metric, claims []*v1.PersistentVolumeClaim) {
	bound, unbound := counts[claimClass]{}, counts[claimClass]{}
	for _, claim := range claims {
		key := claimClass{namespace: label(claim.Namespace), class: valueOf(claim.Spec.StorageClassName), attributes: valueOf(claim.Spec.VolumeAttributesClassName)}
		if claim.Status.Phase == v1.ClaimBound {
			bound[key]++
		} else {
			unbound[key]++
		}
	}
	bound.collect(metrics, boundPVCs, claimClass.labels)
	unbound.collect(metrics, unboundPVCs, claimClass.labels)
}

func valueOf(name *string) string {
	if name == nil {
		return ""
	}
	return label(*name)
}
