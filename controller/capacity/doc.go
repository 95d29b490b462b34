// Package capacity publishes the free capacity of plugins as CSIStorageCapacity objects, for a scheduler such as
// controller/scheduling or Kubernetes' own. It does what Kubernetes' external-provisioner does.
//
//	c, err := capacity.New(plugins, objects, capacity.Options{Namespace: "storage"})
//	err = c.Run(ctx)
//
// # Which objects there are
//
// There is one object for each class of a plugin with [volume.CapCapacity] and each segment. A segment is the part of
// the cluster that can reach the same volumes. By default a plugin has the segments of the nodes with its driver, by
// the topology keys in their CSINodes. A driver without keys has one segment, all nodes. [Options].Segments gives the
// segments of plugins without a CSINode, or of the one node of this process. Classes that bind at once have no object
// unless [Options].ImmediateBinding is set, because no scheduler reads it.
//
// The scheduler reads the objects of a driver only if its CSIDriver has storageCapacity set. An object without a
// capacity says that no volume fits. So leave storageCapacity unset for a plugin that does not know its free capacity.
//
// # When they change
//
// The controller calls the plugin when a class or a segment is new, when a PersistentVolume of the plugin was created,
// expanded or deleted, when another program has changed the object, and at each [Options].PollInterval. It writes an
// object only if the object changes. It deletes an object when its class or segment is gone. If the plugin fails, the
// object stays unchanged. The first of several failures in a row is logged, and is an event of the class.
//
// The labels csi.storage.k8s.io/managed-by and csi.storage.k8s.io/drivername identify the controller's objects. The
// controller leaves other objects alone. The name of an object is derived from driver, class and segment: two
// controllers with one name create no second object.
package capacity
