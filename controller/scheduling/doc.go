// Package scheduling answers where a pod can have its volumes. It is a library for an orchestrator's scheduler: it decides on no node
// by itself.
//
//	s := scheduling.New(objects, scheduling.Options{})
//	go s.Run(ctx)
//	s.WaitSynced(ctx)
//
//	result, err := s.Find(pod)      // an error of the pod as a whole; see PodError
//	for node := range result.Nodes() { ... }
//	why := result.Why("node-7")     // nil where the pod can have its volumes
//	reservation, err := s.Reserve(pod, "node-3")
//	err = reservation.Bind(ctx)     // after an error: reservation.Release(), and Find again
//	// give the pod its node in the store: that ends the reservation
//
// # What is looked at
//
// The node affinity and the zone labels of bound volumes; existing volumes for claims that wait for their consumer, the smallest that
// fits per claim, all claims of the pod together; where new volumes can be made, by allowed topologies and by what is left of the
// capacity of each segment; attach limits per driver; pods that use the same claim or volume and exclude this pod; inline disks.
// Volumes and capacity that other pods have reserved are taken off.
//
// # Guarantees
//
// Find does no I/O: it reads indexes of what was last seen of the store. Its cost does not depend on the number of volumes of other
// classes, and it allocates as often for 5,000 nodes as for one. What was reserved stays so until it is released, or the store shows
// it. Two schedulers that place one pod at the same time bind its claims for one node: the other's Bind fails with [ErrPlaceAnew].
// docs/scheduling.md lists the behaviour row by row, with the differences from Kubernetes.
package scheduling
