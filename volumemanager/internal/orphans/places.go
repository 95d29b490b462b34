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

// The manager takes an unrecorded mount or directory for its own only at the exact paths at which its plugins have volumes
// (docs/contract.md, W5). Everything else below the root may be the operator's: for example a filesystem on which a plugin
// keeps its data.

// checkPlace refuses an orphan at a path where the manager makes no mounts or directories. The error matches
// [mount.ErrForeign].
func (l *List) checkPlace(o Orphan) error {
	if l.isPodsPlace(o.Path) || l.isPluginsPlace(o.Path) {
		return nil
	}
	what, advice := "directory", "remove it if it is not needed"
	if o.Mounted {
		what, advice = "mount", "unmount it if it is not needed"
	}
	return fmt.Errorf("%s at %q stays, since no plugin here has volumes there: %s: %w", what, o.Path, advice, mount.ErrForeign)
}

// isPodsPlace reports whether path is the path of a pod's volume, of the link to its device, or of a part of it.
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

// hasVolumeAt reports whether the plugin of a volume has the pod's volume at exactly that path.
func (l *List) hasVolumeAt(d Dir) bool {
	pathOf := pluginpaths.SetUp
	if d.Block {
		pathOf = pluginpaths.Link
	}
	path, err := pathOf(l.options.Plugins, d.Plugin, d.Name, d.UID)
	return err == nil && path == d.Path
}

// isPluginsPlace reports whether a plugin stages a volume at path ({plugin}/mounts/{volume}), binds a device for a pod there
// ({plugin}/volumeDevices/{volume}/{pod}), or has the directory of such binds there.
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
