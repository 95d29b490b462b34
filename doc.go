// Package volumekit is the root of an SDK that does with volumes what Kubernetes does, for programs that are not
// Kubernetes. It holds no code: this comment says where to go.
//
// # Where to start
//
// Embed: you write an orchestrator, a node agent, a virtual kubelet, a runner of jobs. Give a
// [github.com/volumekit/volumekit/volumemanager.Manager] your plugins and your pods; it attaches, stages and sets up
// what they need, says when a pod is ready or why it is not, and takes everything away again. Begin with package
// volumemanager; examples/quickstart is a whole agent.
//
// Plug in: you write a volume plugin. Implement the small interfaces of package
// [github.com/volumekit/volumekit/volume], mount through package [github.com/volumekit/volumekit/mount], and prove with
// one call of [github.com/volumekit/volumekit/volume/volumetest] that the plugin keeps the contract, without root.
// plugins/loopblock and plugins/emptydir are there to be copied.
//
// # Reading order
//
// volume (the contract, as a tutorial), mount (what the kernel is asked for), operationexecutor (one operation per
// volume at a time, and how it ends), cache (what should be, what is), volumemanager (from one to the other), store,
// controller/persistentvolume (claims) and controller/attachdetach (which node has what). docs/architecture.md draws it.
//
// What a plugin needs beside that, each usable alone: mount/loop, mount/format, mount/blockmap (devices), mount/safepath
// (directories that a workload writes to), volume/ownership (fsGroup), volume/usage, volume/atomicwriter (config maps and
// secrets). mount/mounttest gives tests a mount namespace of their own.
//
// # Import rule
//
// Packages depend on each other in one direction only, as docs/architecture.md draws it and as a test holds. The module
// needs four others: k8s.io/api, k8s.io/apimachinery, golang.org/x/sys and, in tests alone,
// github.com/stretchr/testify. Nothing registers itself by being imported, there are no globals, and constructors start
// nothing.
package volumekit
