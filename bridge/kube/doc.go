// Package kube is a [store.Store] on a Kubernetes API server: for virtual kubelets, and for programs that keep Kubernetes' API and bring
// controllers and nodes of their own. It is a module of its own, for those who want client-go.
//
//	config.QPS = -1 // The server is fair by itself; client-go allows five requests a second unless told otherwise.
//	clients, err := kubernetes.NewForConfig(config)
//	s, err := kube.New(clients, kube.Options{})
//	controller := attachdetach.New(plugins, s, attachdetach.Options{})
//
// # What the API server does otherwise
//
// The guarantees are those of [store.Store], by the suite in store/storetest, with what Kubernetes adds:
//
//   - The status of claims, volumes, pods, nodes and attachments is written apart. [Store.Update] writes what has changed, which is
//     one request or two, and others see the first before the second. [Store.Create] writes a status after the object.
//   - An update that changes nothing is no write. The UID of a new object is the server's; one that is given is refused.
//   - What is returned is the server's: it fills in defaults, normalizes, and refuses what it does not allow, such as a change of the
//     source of a volume, with an error that matches [store.ErrInvalid]. Admission may change objects further.
//   - A pod that runs is deleted gracefully: it stays until its node is done with it.
//   - Namespaces must exist, those of leases too.
//
// There are no transactions. [store.LessorOf] returns leases that are kept as Lease objects of coordination.k8s.io.
//
// # Reading
//
// [Store.Get] and [Store.List] ask the server and see every write that was acknowledged before. A program that reads often reads a
// [store.Mirror], which is to a store what an informer is to client-go. Versions are the server's own. A watch goes on where it was
// when the server ends it, as it does every half hour or so, or is not to be reached. When the server has forgotten what was since,
// the watch is closed, and a mirror lists again.
//
// A program that has informers of client-go, as a virtual kubelet has, gives them to the store by [Options].Informers: they feed the
// watches of their kinds, and nothing is watched twice. Updates and reads go to the server all the same.
//
// [Options].Only keeps the agent of a node from watching the nodes and pods of all others.
//
// Managed fields are left out of all that is read, and stay as they are on the server.
//
// # Errors
//
// They match the sentinels of store, or [ErrDenied], and the error of client-go as well, by which a program can tell what else the
// server said. An error that matches none may pass: the server is busy, or is not to be reached. As with every store on another
// machine, what was asked for may have been done all the same; versions let no write be done twice.
//
// # What must not run beside it
//
// The controllers of this library do the work of kube-controller-manager's. If you run them there, switch those off:
//
//	--controllers=*,-persistentvolume-binder-controller,-persistentvolume-attach-detach-controller,
//	  -persistentvolume-expander-controller,-ephemeral-volume-controller,-persistentvolume-protection-controller,
//	  -persistentvolumeclaim-protection-controller
//
// The client needs get, list, watch, create, update and delete of the kinds in [store.Kinds] that are used, and update of
// persistentvolumes/status, persistentvolumeclaims/status, nodes/status, pods/status and volumeattachments/status.
package kube
