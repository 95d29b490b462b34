// Package prometheus exports what a node and its controllers know about volumes as Prometheus metrics. It is a module of its own,
// for programs that use client_golang.
//
//	observer := prometheus.NewObserver()
//	manager, err := volumemanager.New(plugins, volumemanager.Options{Observer: observer})
//	registry.MustRegister(observer, prometheus.NewNode(manager, prometheus.NodeOptions{}))
//
// A process with controllers registers their collectors as well:
//
//	registry.MustRegister(prometheus.NewAttachments(attachController), prometheus.NewClaims(claims, volumes, claimController))
//
// # Names
//
// Metrics that Kubernetes has keep the names and labels of Kubernetes 1.36, so that existing dashboards work:
//
//	storage_operation_duration_seconds         operations, by plugin, operation and status
//	kubelet_volume_stats_*                     capacity, use and health of the volumes of claims
//	volume_manager_total_volumes               volumes that pods want, and volumes on the node
//	attachdetach_controller_total_volumes      the same for attachments
//	attachdetach_controller_forced_detaches    forced detaches, by reason
//	storage_count_attachable_volumes_in_use    attached volumes, by node and plugin
//	pv_collector_*                             claims and PersistentVolumes, bound and unbound
//
// What Kubernetes has no metric for begins with volumekit_. docs/metrics.md lists all of them.
//
// # Labels
//
// Labels are names of plugins, operations, steps, phases, classes, reasons, nodes, namespaces and claims. The name of a pod, a
// volume or a path is never a label. So the number of series grows with plugins, nodes and claims, not with pods.
//
// # Cost
//
// A scrape reads memory. It never waits for storage: statistics are those that the manager has measured last, and claims are
// read from a [store.Mirror]. An [Observer] adds a few counters to each operation.
package prometheus
