// Package fake has models of the parts that touch a real machine, for tests of orchestrators and plugins:
//
//   - [Mounter] is a mount.Interface in memory, with a mount table and a file tree per filesystem. What is written through
//     one mount can be read through another. A read-only mount refuses writes. A mount on a shared mount appears at its
//     peers and slaves. It is also the filesystem for plugins whose volumes are directories: plugins/hostpath and
//     plugins/files use it.
//   - [Plugin] is a volume plugin with every capability. It really mounts, through the mount.Interface that it gets: with
//     a [Mounter] it needs no root and no real path.
//   - [Backend] is the storage that plugins manage: which volumes exist, how large they are, where they are attached. It
//     outlives a Plugin, as a disk array outlives the agent that uses it.
//   - [Recorder] keeps the events that it gets.
//   - [NewHost] is the host of a node whose directories are in a Mounter.
//
// The fakes keep the same contract as the real implementations: [Plugin] passes volume/volumetest, and [Mounter] passes
// mount/mounttest.
//
// # Faults and calls
//
// Faults are data. [Plugin.Inject] queues [Fault] values for one [Method], and each call takes the next one. A fault may
// fail with an error of any class, hang until it is released, do the work and report a failure, report success without
// doing the work, or panic. Calls are data too: [Plugin.Calls] returns them in the order in which they began, and
// [Plugin.AwaitCalls] waits for calls to begin, so a test needs no sleep.
//
// # Guarantees
//
// All methods may be called from several goroutines at once. The package does not import testing and does not wait for
// time to pass, so the fakes work inside testing/synctest and outside of tests. It starts one goroutine only: for a
// Mounter's call that a fault delays. That goroutine ends when the fault's channel is closed.
package fake
