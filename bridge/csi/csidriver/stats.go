package csidriver

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/volume"
)

// GetMetrics implements [volume.MetricsProvider] with the driver's stats or, if it has none, with statfs.
func (u *podVolume) GetMetrics(ctx context.Context) (*volume.Metrics, error) {
	s, err := u.plugin.client.session(ctx)
	if err != nil {
		return nil, err
	}
	if !s.facts.node[csi.NodeServiceCapability_RPC_GET_VOLUME_STATS] {
		return u.Dir.GetMetrics(ctx)
	}
	rec, err := u.record()
	if err != nil {
		return nil, err
	}
	answer, err := call(ctx, s, "NodeGetVolumeStats", csi.NewNodeClient(s.conn).NodeGetVolumeStats, &csi.NodeGetVolumeStatsRequest{
		VolumeId: rec.VolumeID, VolumePath: rec.Path, StagingTargetPath: rec.Staging,
	})
	if err != nil {
		return nil, err
	}
	metrics, err := metricsOf(answer.GetUsage())
	if err != nil {
		return nil, fmt.Errorf("driver %q: volume %q: NodeGetVolumeStats: %w", s.facts.name, rec.VolumeID, err)
	}
	return metrics, nil
}

// record returns the record of the pod's path.
func (u *podVolume) record() (record, error) {
	rec, known, err := u.plugin.node.mountPoints.records.read(u.GetPath())
	if err == nil && !known {
		err = fmt.Errorf("driver %q: nothing is published at %q: %w", u.plugin.options.Driver, u.GetPath(), volume.ErrUnsupported)
	}
	return rec, err
}

// metricsOf converts a driver's stats. It refuses impossible numbers.
func metricsOf(usage []*csi.VolumeUsage) (*volume.Metrics, error) {
	m := &volume.Metrics{Time: metav1.Now()}
	for _, u := range usage {
		if u.GetTotal() < 0 || u.GetUsed() < 0 || u.GetAvailable() < 0 || u.GetUsed() > u.GetTotal() && u.GetTotal() != 0 {
			return nil, fmt.Errorf("of %d %s %d are used and %d free: %w", u.GetTotal(), u.GetUnit(), u.GetUsed(), u.GetAvailable(), volume.ErrInvalid)
		}
		switch u.GetUnit() {
		case csi.VolumeUsage_BYTES:
			m.Capacity, m.Used, m.Available = quantity(u.GetTotal()), quantity(u.GetUsed()), quantity(u.GetAvailable())
		case csi.VolumeUsage_INODES:
			m.Inodes, m.InodesUsed, m.InodesFree = quantity(u.GetTotal()), quantity(u.GetUsed()), quantity(u.GetAvailable())
		default: // of a newer specification
		}
	}
	if m.Capacity == nil && m.Inodes == nil {
		return nil, fmt.Errorf("the driver reports neither bytes nor inodes: %w", volume.ErrUnsupported)
	}
	return m, nil
}

func quantity(n int64) *resource.Quantity { return resource.NewQuantity(n, resource.BinarySI) }

// GetHealth implements [volume.HealthReporter]. A status of a newer specification is unknown. A driver without health
// reports none.
func (u *podVolume) GetHealth(ctx context.Context) ([]volume.HealthCondition, error) {
	s, err := u.plugin.client.session(ctx)
	if err != nil || !s.facts.node[csi.NodeServiceCapability_RPC_GET_VOLUME_HEALTH] {
		return nil, err
	}
	rec, err := u.record()
	if err != nil {
		return nil, err
	}
	answer, err := call(ctx, s, "NodeGetVolumeHealth", csi.NewNodeClient(s.conn).NodeGetVolumeHealth, &csi.NodeGetVolumeHealthRequest{
		VolumeId: rec.VolumeID, VolumePublishPath: rec.Path, StagingTargetPath: rec.Staging,
	})
	if err != nil {
		return nil, err
	}
	var conditions []volume.HealthCondition
	for _, entry := range answer.GetVolumeHealth().GetHealthStatuses() {
		conditions = append(conditions, volume.HealthCondition{
			Status: healthOf(entry.GetStatus()), Reason: entry.GetReason(), Message: cut(entry.GetMessage()),
		})
	}
	return conditions, nil
}

func healthOf(status csi.VolumeHealthErrorType) volume.HealthStatus {
	switch status {
	case csi.VolumeHealthErrorType_DEGRADED:
		return volume.HealthDegraded
	case csi.VolumeHealthErrorType_INACCESSIBLE, csi.VolumeHealthErrorType_DATA_LOSS:
		return volume.HealthAbnormal
	default:
		return volume.HealthUnknown
	}
}

// GetCapacity implements [volume.VolumePluginWithCapacity]. The driver gets the segment as the accessible topology.
// With a segment, the driver must support topologies.
func (p *Plugin) GetCapacity(ctx context.Context, options volume.CapacityOptions) (volume.Capacity, error) {
	s, err := p.client.session(ctx)
	if err != nil {
		return volume.Capacity{}, err
	}
	own, _, _, err := splitParameters(volume.VolumeOptions{Parameters: withoutSecrets(options.Parameters)})
	if err != nil {
		return volume.Capacity{}, err
	}
	request := &csi.GetCapacityRequest{Parameters: own}
	if len(options.Segment) > 0 {
		if !s.facts.services[csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS] {
			return volume.Capacity{}, fmt.Errorf("driver %q: capacity of a segment, and the driver has no topology: %w", s.facts.name, volume.ErrUnsupported)
		}
		request.AccessibleTopology = &csi.Topology{Segments: options.Segment}
	}
	answer, err := call(ctx, s, "GetCapacity", csi.NewControllerClient(s.conn).GetCapacity, request)
	if err != nil {
		return volume.Capacity{}, err
	}
	return capacityOf(s.facts.name, answer)
}

// capacityOf converts a driver's answer. A missing value is unknown.
func capacityOf(driver string, answer *csi.GetCapacityResponse) (volume.Capacity, error) {
	sizes := []int64{answer.GetAvailableCapacity(), answer.GetMaximumVolumeSize().GetValue(), answer.GetMinimumVolumeSize().GetValue()}
	if slices.Min(sizes) < 0 {
		return volume.Capacity{}, fmt.Errorf("driver %q: GetCapacity: a negative size in %v: %w", driver, sizes, volume.ErrInvalid)
	}
	capacity := volume.Capacity{Available: resource.NewQuantity(sizes[0], resource.BinarySI)}
	if answer.GetMaximumVolumeSize() != nil {
		capacity.MaximumVolumeSize = resource.NewQuantity(sizes[1], resource.BinarySI)
	}
	if answer.GetMinimumVolumeSize() != nil {
		capacity.MinimumVolumeSize = resource.NewQuantity(sizes[2], resource.BinarySI)
	}
	return capacity, nil
}

// withoutSecrets removes the references to secrets: their templates need a claim, and GetCapacity has no secrets.
func withoutSecrets(parameters map[string]string) map[string]string {
	rest := maps.Clone(parameters)
	maps.DeleteFunc(rest, func(key, _ string) bool {
		return strings.HasPrefix(key, parameterPrefix) && (strings.HasSuffix(key, secretNameEnd) || strings.HasSuffix(key, secretSpaceEnd))
	})
	return rest
}
