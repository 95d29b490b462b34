package local

import (
	"context"
	"os"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volume/ownership"
)

// eventAlreadyMounted is the reason of the event that says that a pod's fsGroup was not applied, because other pods have the
// volume with another group. It is that of Kubernetes.
const eventAlreadyMounted = "AlreadyMountedVolume"

// own gives the content to the group that the pod asks for, unless other pods have the volume. It works on the staged
// directory, so that nothing is bound when it fails.
func (m *mounter) own(ctx context.Context, dir string, args volume.MounterArgs) error {
	if args.FsGroup == nil || m.src.podReadOnly || args.IsRemount {
		return nil
	}
	staged := m.plugin.stagingPath(m.src.name)
	pods, err := m.plugin.GetDeviceMountRefs(ctx, staged)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(pods, func(path string) bool { return path != dir }) {
		return m.warn(ctx, staged, *args.FsGroup)
	}
	_, err = ownership.Apply(ctx, staged, ownership.Options{
		Group: args.FsGroup, Policy: args.FSGroupChangePolicy, Events: m.plugin.events, Pod: m.pod,
	})
	return err
}

// warn tells of a group that the volume does not get.
func (m *mounter) warn(ctx context.Context, staged string, want int64) error {
	group, err := mount.RunAbandonable(ctx, "stat", staged, func() (int64, error) {
		info, err := os.Stat(staged)
		if err != nil {
			return 0, err
		}
		return groupOf(info)
	})
	if err == nil && group != want && m.plugin.events != nil {
		m.plugin.events.Eventf(m.pod, v1.EventTypeWarning, eventAlreadyMounted,
			"volume %q belongs to group %d and other pods use it: fsGroup %d is not applied, and the pod may not be able to use the volume",
			m.src.name, group, want)
	}
	return err
}
