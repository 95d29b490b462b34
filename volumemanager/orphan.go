package volumemanager

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/loop"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/orphans"
)

// OrphanPolicy says what the manager does with orphans.
type OrphanPolicy string

const (
	// OrphansAreReported reports orphans and does not change them.
	OrphansAreReported OrphanPolicy = ""
	// OrphansAreRemoved removes orphans once all pods are known (PodsComplete), unless a pod with the orphan's UID is known.
	// It uses a plain unmount for mounts and rmdir for directories, nothing else. It works only where the registered plugins
	// have volumes: at the paths of pods' volumes and their parts, {plugin}/mounts/{volume} and
	// {plugin}/volumeDevices/{volume}. Anything else below the root stays, with an error that matches mount.ErrForeign. A
	// directory that is not empty stays. A mount that is in use is tried again, at least once a minute. A loop device is
	// detached if it is not in use and provably belongs to one of our volumes: by the label that its plugin gave it, and by
	// the path of its file.
	OrphansAreRemoved OrphanPolicy = "remove"
)

// Orphan is a mount, a directory or a loop device without a record. A mount lies where this node has volumes. A directory is
// one in which volumes are set up for pods, staged ({plugin}/mounts) or mapped ({plugin}/volumeDevices), or the directory of
// an unknown pod without any volume. The file of a loop device lies under the root.
type Orphan struct {
	// Path is its absolute path; that of a loop device is the path of its node.
	Path string
	// BackingFile is the file of a loop device; empty for all others.
	BackingFile string
	// PodUID is the pod in whose directory it is; empty if it is in none.
	PodUID types.UID
	// Mounted is true for a mount, false for a directory.
	Mounted bool
	// FSType and Source are the type and the source of the mount.
	FSType, Source string
	// Err is why it could not be rebuilt or removed; nil if neither was tried.
	Err error
}

// LoopDevices lists and detaches loop devices. A [*loop.Manager] implements it.
type LoopDevices interface {
	// Devices returns every loop device of the machine that has a file, whether or not the manager has attached it.
	Devices(ctx context.Context) ([]loop.Device, error)
	// Detach detaches a device and verifies that. While the device is in exclusive use, it changes nothing and the error
	// matches loop.ErrInUse.
	Detach(ctx context.Context, device loop.Device) error
}

var _ LoopDevices = (*loop.Manager)(nil)

// statusOfOrphans returns the status of volumes that are known only by their paths.
func statusOfOrphans(orphans []orphans.Orphan) []VolumeStatus {
	rows := make([]VolumeStatus, 0, len(orphans))
	for _, o := range orphans {
		err := fmt.Errorf("%q is on no record and could not be rebuilt: take it away, or set Options.Orphans: %w", o.Path, volume.ErrInUse)
		if o.Err != nil {
			err = fmt.Errorf("%w: %w", err, o.Err)
		}
		rows = append(rows, VolumeStatus{
			PodUID: o.PodUID, OuterName: o.Dir.Name, Plugin: o.Dir.Plugin, Phase: PhaseUncertain, Path: o.Path, Block: o.Dir.Block, Err: err,
		})
	}
	return rows
}

// addFound adds the rebuilt volumes, damaged records and orphans that were found at the start to the status. It omits orphans that were
// rebuilt.
func (n *nodeView) addFound(status *NodeStatus) {
	status.Rebuilt, status.PodsComplete = n.recovery.Rebuilt(), n.recovery.ArePodsComplete()
	for _, d := range slices.Concat(n.recovery.Damaged(), n.recovery.Aside()) {
		status.Damaged = append(status.Damaged, DamagedRecord(d))
	}
	for _, o := range n.recovery.Orphans() {
		status.Orphans = append(status.Orphans, Orphan{
			Path: o.Path, BackingFile: o.BackingFile, PodUID: o.PodUID, Mounted: o.Mounted, FSType: o.FSType, Source: o.Source, Err: o.Err,
		})
	}
}

// orphanOptions returns the options of the list of orphans.
func (m *Manager) orphanOptions() orphans.Options {
	o := orphans.Options{
		Plugins: m.plugins, Logger: m.options.Logger, Mounter: m.options.Mounter, BlockMapper: m.options.BlockMapper, Loops: m.options.Loops,
		CheckRoot: m.root.Check,
		Lookup:    func(ctx context.Context, path string) (mount.MountPoint, error) { return m.watch.Lookup(ctx, path) },
		IsMount:   func(path string) bool { return m.watch.IsMount(path) }, IsBusy: func(path string) bool { return m.watch.IsBusy(path) },
		IsKnown:    func(pod volume.UniquePodName) bool { return m.populator.IsKnown(pod) },
		HasVolumes: func(pod volume.UniquePodName) bool { return len(m.actual.GetVolumeNamesForPod(pod)) > 0 },
		Notify:     m.changes.Notify, InUseChanged: func() { m.nodeStatus.Recheck() },
	}
	if m.journal != nil {
		o.Records = m.journal
	}
	if table, ok := m.options.Mounter.(MountTable); ok {
		o.Table = table
	}
	return o
}
