package csidriver

import "github.com/volumekit/volumekit/volume"

// nodeService stages and publishes volumes by the driver's node service, and takes them away.
type nodeService struct {
	options Options
	link    *link
	name    string // that of the plugin
	host    volume.VolumeHost
	points  mountPoints
	// contexts is for volumes that are attached and not staged.
	contexts contexts
}

// init says where on the node the volumes are.
func (n *nodeService) init(host volume.VolumeHost) error {
	n.host = host
	n.points.records = records{dir: host.GetPluginDir(n.name) + "/records"}
	return n.points.records.tidy()
}
