// Package capacity publishes how much storage plugins can still make, as CSIStorageCapacity objects, for a scheduler such as
// controller/scheduling or Kubernetes' own. It does what Kubernetes' external-provisioner does.
//
//	c, err := capacity.New(plugins, objects, capacity.Options{Namespace: "storage"})
//	err = c.Run(ctx)
//
// # Which objects there are
//
// There is one object for each class of a plugin with [volume.CapCapacity] and each segment: the part of the cluster from which
// volumes can be reached. By default the segments of a plugin are those of the nodes that have its driver, by the topology keys
// in their CSINodes. A driver without keys has one segment, all nodes. [Options].Segments gives the segments of plugins that have
// no CSINode, or of the one node of this process. Classes that bind at once have no object unless [Options].ImmediateBinding
// is set, because no scheduler reads it.
//
// The scheduler reads the objects of a driver only if its CSIDriver has storageCapacity set. An object without a capacity says
// that nothing fits. So leave storageCapacity unset for a plugin that does not know what is available.
//
// # When they change
//
// The plugin is asked when a class or a segment is new, when a PersistentVolume of the plugin was made, grown or deleted,
// when the object was changed by another, and once in each [Options].PollInterval. An object is written only if it would
// change. It is deleted when its class or segment is gone. If the plugin fails, the object stays as it is. The first of several
// failures in a row is logged, and is an event of the class.
//
// The labels csi.storage.k8s.io/managed-by and csi.storage.k8s.io/drivername say whose an object is. Others are left alone. The
// name of an object follows from driver, class and segment, so two controllers with one name make no second object.
package capacity
