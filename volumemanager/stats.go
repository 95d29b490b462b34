package volumemanager

import (
	"cmp"
	"context"
	"math"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/cache"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/podvolume"
	"github.com/volumekit/volumekit/volumemanager/internal/stats"
)

// VolumeStats has the last measured stats and the conditions of one volume of one pod. The fields have the names of kubelet's stats. A
// nil field is unknown. A pod that refers to one claim under two names has two VolumeStats.
type VolumeStats struct {
	// PodUID is the UID of the pod, PodName its namespace and name.
	PodUID  types.UID
	PodName types.NamespacedName
	// OuterName is the name in the pod's spec.
	OuterName string
	// Claim is the claim to which the PersistentVolume is bound; empty for other volumes.
	Claim types.NamespacedName
	// Volume is the unique name, Plugin the name of the plugin.
	Volume v1.UniqueVolumeName
	Plugin string

	// Time is when the stats were measured; zero if never. A failed measurement does not change them.
	Time time.Time
	// CapacityBytes, AvailableBytes, UsedBytes and the numbers of inodes are those of volume.Metrics. A block device has only a
	// capacity.
	CapacityBytes, AvailableBytes, UsedBytes *uint64
	Inodes, InodesFree, InodesUsed           *uint64

	// Err is the error of the last measurement; nil if it succeeded. It matches volume.ErrUnsupported if the volume cannot be
	// measured.
	Err error
	// Since is when the running measurement began; zero if none runs. A measurement that began long ago hangs. No other begins before
	// it has returned.
	Since time.Time
	// Conditions are the faults of the volume, as in VolumeStatus.
	Conditions []Condition
}

// Age returns the age of the stats; zero if there are none.
func (s VolumeStats) Age() time.Duration {
	if s.Time.IsZero() {
		return 0
	}
	return time.Since(s.Time)
}

// Stats returns the last measurement of every volume that is set up for a pod, sorted by pod and outer name. It queues a new
// measurement of each volume whose last attempt is older than maxAge. It waits for nothing, least of all for hung storage: a
// later call, or WaitForStats, returns the new stats. The manager measures only on request, and only while Run runs.
func (m *Manager) Stats(maxAge time.Duration) []VolumeStats {
	all := m.actual.GetAllMountedVolumes()
	rows := make([]VolumeStats, 0, len(all))
	known := make(map[podvolume.Key]struct{}, len(all))
	for i := range all {
		mounted := &all[i]
		h := podvolume.Key{Volume: mounted.VolumeName, Pod: mounted.PodName}
		known[h] = struct{}{}
		rows = m.view.appendStats(rows, mounted, m.stats.Read(h, maxAge, mounted.State))
	}
	m.stats.Keep(known)
	return sortStats(rows)
}

// PodStats is Stats for the volumes of one pod. It is empty for an unknown pod.
func (m *Manager) PodStats(uid types.UID, maxAge time.Duration) []VolumeStats {
	var rows []VolumeStats
	for mounted := range m.actual.VolumesOfPod(volume.UniquePodName(uid)) {
		h := podvolume.Key{Volume: mounted.VolumeName, Pod: mounted.PodName}
		rows = m.view.appendStats(rows, mounted, m.stats.Read(h, maxAge, mounted.State))
	}
	return sortStats(rows)
}

// WaitForStats is Stats, but waits for the measurements. It does not wait longer than a second for one measurement: the volume hangs, or
// is large. If ctx or Run ends first, WaitForStats returns an error with the stats that are known.
func (m *Manager) WaitForStats(ctx context.Context, maxAge time.Duration) ([]VolumeStats, error) {
	changed, cancel := m.stats.Subscribe()
	defer cancel()
	asked := time.Now()
	for {
		// Measurements that end after this moment are recent enough.
		rows := m.Stats(maxAge + time.Since(asked))
		next, waits := m.stats.NextWaitEnd()
		if !waits {
			return m.Stats(math.MaxInt64), nil // Measurements may have ended since the call above.
		}
		timer := time.NewTimer(time.Until(next))
		select {
		case <-changed:
		case <-timer.C:
		case <-m.run.stopped:
			timer.Stop()
			return rows, ErrStopped
		case <-ctx.Done():
			timer.Stop()
			return rows, context.Cause(ctx)
		}
		timer.Stop()
	}
}

func sortStats(rows []VolumeStats) []VolumeStats {
	slices.SortFunc(rows, func(a, b VolumeStats) int {
		return cmp.Or(compareNames(a.PodName, b.PodName), cmp.Compare(a.PodUID, b.PodUID), cmp.Compare(a.OuterName, b.OuterName))
	})
	return rows
}

// appendStats appends the stats of a volume to rows, under each of its names in the pod.
func (n *nodeView) appendStats(rows []VolumeStats, mounted *cache.MountedVolume, r stats.Reading) []VolumeStats {
	s := VolumeStats{
		PodUID: mounted.PodUID, Volume: mounted.VolumeName, Plugin: mounted.PluginName,
		Err: r.Err, Since: r.Since, Conditions: n.conditionsOf(podvolume.Key{Volume: mounted.VolumeName, Pod: mounted.PodName}),
	}
	if mounted.Pod != nil {
		s.PodName = store.NameOf(mounted.Pod)
	}
	if spec := mounted.VolumeSpec; spec != nil && spec.PersistentVolume != nil && spec.PersistentVolume.Spec.ClaimRef != nil {
		ref := spec.PersistentVolume.Spec.ClaimRef
		s.Claim = types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}
	}
	if r.Metrics != nil {
		s.fill(r.Metrics)
	}
	names := n.populator.Pod(mounted.PodUID).OuterNames(mounted)
	if len(names) == 0 {
		names = mounted.OuterVolumeSpecNames // The volume is being removed.
	}
	for _, outer := range names {
		s.OuterName = outer
		rows = append(rows, s)
	}
	return rows
}

func (s *VolumeStats) fill(metrics *volume.Metrics) {
	s.Time = metrics.Time.Time
	s.CapacityBytes, s.AvailableBytes, s.UsedBytes = unsigned(metrics.Capacity), unsigned(metrics.Available), unsigned(metrics.Used)
	s.Inodes, s.InodesFree, s.InodesUsed = unsigned(metrics.Inodes), unsigned(metrics.InodesFree), unsigned(metrics.InodesUsed)
}

func unsigned(q *resource.Quantity) *uint64 {
	if q == nil || q.Sign() < 0 {
		return nil
	}
	value := uint64(q.Value()) //nolint:gosec // It is not negative.
	return &value
}
