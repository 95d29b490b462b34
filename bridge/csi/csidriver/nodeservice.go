package csidriver

import "github.com/volumekit/volumekit/volume"

// nodeService stages, publishes, unpublishes and unstages volumes with the driver's node service.
type nodeService struct {
	options Options
	link    *link
	name    string // the plugin's name
	host    volume.VolumeHost
	points  mountPoints
	// contexts is for volumes that are attached and not staged.
	contexts contexts
}

// init sets the directories of volumes on the node.
func (n *nodeService) init(host volume.VolumeHost) error {
	n.host = host
	n.points.records = records{dir: host.GetPluginDir(n.name) + "/records"}
	return n.points.records.tidy()
}
