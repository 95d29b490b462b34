package volumemanager

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/paths"
)

// The manager takes a mount or a directory of which nothing is on record for its own only where it makes such itself: at the
// exact places of the volumes that its plugins serve (docs/contract.md, W5). All else below the root may be the operator's,
// also a filesystem of his that a plugin keeps its data on.

// checkPlace refuses an orphan that does not lie where the manager makes mounts and directories. The error matches
// [mount.ErrForeign].
func (m *Manager) checkPlace(o Orphan) error {
	if m.isPodsPlace(o.Path) || m.isPluginsPlace(o.Path) {
		return nil
	}
	what, advice := "directory", "remove it if nobody needs it"
	if o.Mounted {
		what, advice = "mount", "unmount it if nobody needs it"
	}
	return fmt.Errorf("%s at %q stays, since no plugin here has volumes there: %s: %w", what, o.Path, advice, mount.ErrForeign)
}

// isPodsPlace reports whether path is that of a volume of a pod, of the link to its device, or of a part of it.
func (m *Manager) isPodsPlace(path string) bool {
	rest, ok := strings.CutPrefix(path, filepath.Clean(m.plugins.Host().GetPodsDir())+"/")
	if !ok {
		return false
	}
	e := strings.Split(rest, "/")
	switch {
	case len(e) == 4 && (e[1] == "volumes" || e[1] == "volumeDevices"):
		dir := foundDir{path: path, uid: types.UID(e[0]), plugin: volume.UnescapeQualifiedName(e[2]), name: e[3], block: e[1] == "volumeDevices"}
		return m.hasVolumeAt(dir)
	case len(e) == 5 && e[1] == subpathsDir:
		_, err := strconv.ParseUint(e[4], 10, 32)
		return err == nil
	}
	return false
}

// hasVolumeAt reports whether the plugin of a volume would have it at that path for the pod.
func (m *Manager) hasVolumeAt(d foundDir) bool {
	path, err := guarded("the path of a volume that was found", func() (string, error) {
		if d.block {
			return m.linkOf(d.plugin, d.name, d.uid)
		}
		return m.setUpDirOf(d.plugin, d.name, d.uid)
	})
	return err == nil && path == d.path
}

// isPluginsPlace reports whether path is one at which a plugin stages a volume ({plugin}/mounts/{volume}), or at which a device
// is bound for a pod ({plugin}/volumeDevices/{volume}/{pod}), or the directory of such binds.
func (m *Manager) isPluginsPlace(path string) bool {
	host := m.plugins.Host()
	for _, name := range m.plugins.PluginNames() {
		can := m.plugins.Capabilities(name)
		staged := paths.DepthBelow(path, filepath.Join(host.GetPluginDir(name), "mounts")) == 1
		bound := slices.Contains([]int{1, 2}, paths.DepthBelow(path, host.GetVolumeDevicePluginDir(name)))
		if staged && can.Has(volume.CapDeviceMount) || bound && can.Has(volume.CapBlock) {
			return true
		}
	}
	return false
}
