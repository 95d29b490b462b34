// Package scheduling finds the nodes on which a pod can have its volumes. It is a library for an orchestrator's scheduler,
// which chooses the node.
//
//	s := scheduling.New(objects, scheduling.Options{})
//	go s.Run(ctx)
//	s.WaitSynced(ctx)
//
//	result, err := s.Find(pod)      // an error of the pod as a whole; see PodError
//	for node, score := range result.Scores() { ... }
//	why := result.Why("node-7")     // nil where the pod can have its volumes
//	reservation, err := s.Reserve(pod, "node-3")
//	err = reservation.Bind(ctx)     // after an error: reservation.Release(), and Find again
//	// give the pod its node in the store: that ends the reservation
//
// # What is checked
//
// Find checks these:
//
//   - the node affinity and the zone labels of bound volumes;
//   - existing volumes for claims that wait for their first pod, for all claims of the pod together, and the smallest that fits
//     for each;
//   - where new volumes can be made, by allowed topologies and by the remaining capacity of each segment;
//   - attach limits per driver;
//   - pods that use the same claim or volume and exclude this pod; inline disks.
//
// Volumes and capacity that other pods have reserved do not count.
//
// # Guarantees
//
// Find does no I/O: it reads indexes of the store's last known state. Its cost does not depend on the number of volumes of
// other classes, and it allocates as often for 5,000 nodes as for one. A reservation stays until it is released, or the store
// shows it. If two schedulers place one pod at the same time, its claims are bound for one node, and the Bind of the other
// scheduler fails with [ErrPlaceAnew]. docs/scheduling.md lists the behaviour row by row, with the differences from Kubernetes.
package scheduling
