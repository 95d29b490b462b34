package csidriver

import (
	"os"
	"strings"

	"github.com/volumekit/volumekit/volume"
)

// nodeService stages, publishes, unpublishes and unstages volumes with the driver's node service.
type nodeService struct {
	options     Options
	client      *client
	name        string // the plugin's name
	host        volume.VolumeHost
	mountPoints mountPoints
	// contexts is for volumes that are attached and not staged.
	contexts contexts
}

// init sets the directories of volumes on the node.
func (n *nodeService) init(host volume.VolumeHost) error {
	n.host = host
	n.mountPoints.records = records{dir: host.GetPluginDir(n.name) + "/records", boot: bootID()}
	return n.mountPoints.records.tidy()
}

// bootID returns the kernel's id of this boot; empty where it cannot be read.
func bootID() string {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "" // No record is then taken for one of an earlier boot.
	}
	return strings.TrimSpace(string(id))
}
