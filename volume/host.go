package volume

import (
	"errors"
	"fmt"
	"path/filepath"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/types"
)

// VolumeHost tells a plugin where it lives: the node's name and the directories that are its own. Everything else that
// a plugin needs (a mounter, a lister of secrets, a client) is given to the plugin's constructor.
//
// Every path is absolute and as the host sees it; none of the directories need exist. A plugin name may be given plain
// or escaped. Names and UIDs are joined as they are: check those that come from a spec with
// [CheckPathElement] first. The methods do no I/O and may be called from several goroutines at once.
type VolumeHost interface {
	// GetPluginDir returns the directory of a plugin: {root}/plugins/{plugin name}.
	GetPluginDir(pluginName string) string
	// GetVolumeDevicePluginDir returns the directory of a plugin's global map paths:
	// {root}/plugins/{plugin name}/volumeDevices.
	GetVolumeDevicePluginDir(pluginName string) string
	// GetPodsDir returns the directory that holds one directory per pod: {root}/pods.
	GetPodsDir() string
	// GetPodVolumeDir returns the path of one volume of one pod:
	// {root}/pods/{pod UID}/volumes/{escaped plugin name}/{inner volume name}.
	GetPodVolumeDir(podUID types.UID, pluginName, volumeName string) string
	// GetPodPluginDir returns the directory in which a plugin keeps its own data about one pod:
	// {root}/pods/{pod UID}/plugins/{escaped plugin name}.
	GetPodPluginDir(podUID types.UID, pluginName string) string
	// GetPodVolumeDeviceDir returns the directory of the links to one pod's devices:
	// {root}/pods/{pod UID}/volumeDevices/{escaped plugin name}.
	GetPodVolumeDeviceDir(podUID types.UID, pluginName string) string
	// GetNodeName returns the name of this node.
	GetNodeName() types.NodeName
}

// HostOptions says where a node keeps its volumes.
type HostOptions struct {
	// RootDir is the absolute directory under which everything lives, as /var/lib/kubelet does for a kubelet. Required.
	RootDir string
	// NodeName is the name of this node. Required.
	NodeName types.NodeName
}

// Host is the [VolumeHost] of an ordinary node. It is immutable.
type Host struct {
	root string
	node types.NodeName
}

var _ VolumeHost = (*Host)(nil)

// NewHost returns the host of options. It does no I/O. An option that is missing or not usable is an error that matches
// [ErrInvalid].
func NewHost(options HostOptions) (*Host, error) {
	root := filepath.Clean(options.RootDir)
	switch {
	case options.RootDir == "" || !filepath.IsAbs(options.RootDir):
		return nil, fmt.Errorf("RootDir %q: give an absolute path: %w", options.RootDir, ErrInvalid)
	case !utf8.ValidString(root):
		// Records of what was done say paths in JSON, which has no other.
		return nil, fmt.Errorf("RootDir %q: give a path in UTF-8: %w", options.RootDir, ErrInvalid)
	case root == filepath.Dir(root):
		return nil, fmt.Errorf("RootDir %q: give a directory of its own: %w", options.RootDir, ErrInvalid)
	case options.NodeName == "":
		return nil, fmt.Errorf("NodeName is empty: give the name of this node: %w", ErrInvalid)
	}
	if err := CheckPathElement(string(options.NodeName)); err != nil {
		return nil, fmt.Errorf("NodeName: %w", errors.Join(err, ErrInvalid))
	}
	return &Host{root: root, node: options.NodeName}, nil
}

// GetPluginDir implements [VolumeHost].
func (h *Host) GetPluginDir(pluginName string) string {
	return filepath.Join(h.root, "plugins", UnescapeQualifiedName(pluginName))
}

// GetVolumeDevicePluginDir implements [VolumeHost].
func (h *Host) GetVolumeDevicePluginDir(pluginName string) string {
	return filepath.Join(h.GetPluginDir(pluginName), "volumeDevices")
}

// GetPodsDir implements [VolumeHost].
func (h *Host) GetPodsDir() string { return filepath.Join(h.root, "pods") }

// GetPodVolumeDir implements [VolumeHost].
func (h *Host) GetPodVolumeDir(podUID types.UID, pluginName, volumeName string) string {
	return filepath.Join(h.podDir(podUID), "volumes", EscapeQualifiedName(pluginName), volumeName)
}

// GetPodPluginDir implements [VolumeHost].
func (h *Host) GetPodPluginDir(podUID types.UID, pluginName string) string {
	return filepath.Join(h.podDir(podUID), "plugins", EscapeQualifiedName(pluginName))
}

// GetPodVolumeDeviceDir implements [VolumeHost].
func (h *Host) GetPodVolumeDeviceDir(podUID types.UID, pluginName string) string {
	return filepath.Join(h.podDir(podUID), "volumeDevices", EscapeQualifiedName(pluginName))
}

// GetNodeName implements [VolumeHost].
func (h *Host) GetNodeName() types.NodeName { return h.node }

func (h *Host) podDir(podUID types.UID) string { return filepath.Join(h.GetPodsDir(), string(podUID)) }
