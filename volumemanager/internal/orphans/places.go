package orphans

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/safepath"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/paths"
	"github.com/volumekit/volumekit/volumemanager/internal/pluginpaths"
)

// The manager takes a mount or a directory of which nothing is on record for its own only where it makes such itself: at the
// exact places of the volumes that its plugins serve (docs/contract.md, W5). All else below the root may be the operator's,
// also a filesystem of his that a plugin keeps its data on.

// checkPlace refuses an orphan that does not lie where the manager makes mounts and directories. The error matches
// [mount.ErrForeign].
func (l *List) checkPlace(o Orphan) error {
	if l.isPodsPlace(o.Path) || l.isPluginsPlace(o.Path) {
		return nil
	}
	what, advice := "directory", "remove it if nobody needs it"
	if o.Mounted {
		what, advice = "mount", "unmount it if nobody needs it"
	}
	return fmt.Errorf("%s at %q stays, since no plugin here has volumes there: %s: %w", what, o.Path, advice, mount.ErrForeign)
}

// isPodsPlace reports whether path is that of a volume of a pod, of the link to its device, or of a part of it.
func (l *List) isPodsPlace(path string) bool {
	rest, ok := strings.CutPrefix(path, filepath.Clean(l.options.Plugins.Host().GetPodsDir())+"/")
	if !ok {
		return false
	}
	e := strings.Split(rest, "/")
	switch {
	case len(e) == 4 && (e[1] == "volumes" || e[1] == "volumeDevices"):
		dir := Dir{Path: path, UID: types.UID(e[0]), Plugin: volume.UnescapeQualifiedName(e[2]), Name: e[3], Block: e[1] == "volumeDevices"}
		return l.hasVolumeAt(dir)
	case len(e) == 5 && e[1] == safepath.SubpathsDir:
		_, err := strconv.ParseUint(e[4], 10, 32)
		return err == nil
	}
	return false
}

// hasVolumeAt reports whether the plugin of a volume would have it at that path for the pod.
func (l *List) hasVolumeAt(d Dir) bool {
	pathOf := pluginpaths.SetUp
	if d.Block {
		pathOf = pluginpaths.Link
	}
	path, err := pathOf(l.options.Plugins, d.Plugin, d.Name, d.UID)
	return err == nil && path == d.Path
}

// isPluginsPlace reports whether path is one at which a plugin stages a volume ({plugin}/mounts/{volume}), or at which a device
// is bound for a pod ({plugin}/volumeDevices/{volume}/{pod}), or the directory of such binds.
func (l *List) isPluginsPlace(path string) bool {
	host := l.options.Plugins.Host()
	for _, name := range l.options.Plugins.PluginNames() {
		can := l.options.Plugins.Capabilities(name)
		staged := paths.DepthBelow(path, filepath.Join(host.GetPluginDir(name), "mounts")) == 1
		bound := slices.Contains([]int{1, 2}, paths.DepthBelow(path, host.GetVolumeDevicePluginDir(name)))
		if staged && can.Has(volume.CapDeviceMount) || bound && can.Has(volume.CapBlock) {
			return true
		}
	}
	return false
}
