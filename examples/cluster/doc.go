// Cluster is a small cluster on one machine: four nodes, two controllers and two schedulers, each a process of its own, over an
// etcd of three members. It shows volumes that move: a pod goes from node to node and finds its data, while agents, controllers, members of
// etcd and whole nodes are killed.
//
//	cd examples/cluster && go build -o /tmp/cluster . && sudo /tmp/cluster
//	sudo /tmp/cluster -csi
//	sudo /tmp/cluster -http 127.0.0.1:8080
//
// Each of these commands runs the demo, the second one with its volumes through CSI, the third one with pages: it starts everything, runs the steps, says what
// it does, and takes everything away. It needs root, and touches nothing but a directory of its own.
//
// # The processes
//
//   - "cluster member" is one member of etcd, where all objects are.
//   - "cluster controller" binds claims and makes volumes (controller/persistentvolume), lets them grow (controller/expand),
//     decides which node has which volume (controller/attachdetach), and says which nodes are alive. Two of them run; the one that
//     leads works (controller/leader). It also says how much can still be made (controller/capacity), and takes
//     snapshots, from which claims are restored (controller/snapshot).
//   - "cluster scheduler" gives nodes to pods that have none (controller/scheduling): to nodes that can have their volumes, beside
//     those that they have, and have enough storage for new ones. Two of them work at the same time.
//   - "cluster node" holds the mount namespace of one node and keeps an agent running in it. When it is killed, so is the node.
//   - "cluster agent" embeds the volume manager, and runs the containers of its pods: each writes numbered lines to its volume.
//     It can be killed without its mounts, and goes on with them.
//
// # The storage
//
// The images of plugins/loopblock lie in a directory that all nodes share, as a file server would have it. Which node has an image
// is written in etcd, by a transaction that gives a free image to a node that is alive; a node refuses to open
// an image that was not given to it (disks.go).
//
// Three nodes reach that directory; a label says so. The fourth one, node-far, can have no volume, and gets no pod that has one. Each
// node can have three volumes at a time. Volumes of one class are made at once, those of the other one when a scheduler has chosen a
// node for the pod.
//
// With the flag -csi the same plugin is a CSI driver, and everything else reaches it by sockets (csi.go). The controller that leads
// serves the driver's controller service, each agent its node service, and each is killed with the process that serves it.
//
// # The pages
//
// With -http 127.0.0.1:8080 each controller and each node shows a page (bridge/inspect), at that port and those above it, and says
// where. The page of the controller that leads has the claims that wait, who has which volume, and what is taken from a node
// by force; the other one's, who leads; a node's, its volumes and what each waits for.
//
// # Fencing
//
// A node that is silent may be alive: nothing is taken from it for that. Once an operator or a program has made sure that it is dead,
// for example by turning its power off, a taint says so, and its volumes go to others. The demo kills the node before it says so.
package main
