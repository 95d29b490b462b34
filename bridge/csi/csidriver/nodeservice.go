package csidriver

import (
	disk "github.com/volumekit/volumekit/internal/record"
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
	boot, _ := disk.BootID() // Without the id, no record is taken for one of an earlier boot.
	n.mountPoints.records = records{dir: host.GetPluginDir(n.name) + "/records", boot: boot}
	return n.mountPoints.records.tidy()
}
