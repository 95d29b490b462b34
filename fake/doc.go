// Package fake holds models of the things that touch a real machine, for the tests of orchestrators and of plugins:
//
//   - [Mounter] is a mount.Interface in memory. It keeps a mount table and a tree of files per filesystem, so that what
//     is written through one mount can be read through another, a read-only mount refuses writes, and what is mounted on a
//     shared mount appears at its peers and slaves. It is the filesystem of plugins whose volumes are directories, too:
//     plugins/hostpath and plugins/files take it.
//   - [Plugin] is a volume plugin that can do everything a plugin can do. It really mounts, through whatever
//     mount.Interface it is given: with a [Mounter] no root and no real path is needed.
//   - [Backend] is the storage that plugins manage: which volumes exist, how large they are, where they are attached. It
//     outlives a Plugin, as a disk array outlives the agent that talks to it.
//   - [Recorder] keeps the events that it is told of.
//   - [NewHost] is the host of a node whose directories are in a Mounter.
//
// The fakes are held to the same contract as the real things: [Plugin] passes volume/volumetest, [Mounter] passes
// mount/mounttest.
//
// # Faults and calls
//
// What goes wrong is data. [Plugin.Inject] queues [Fault] values for one [Method]; each call takes the next one. A fault
// may fail with an error of any class, hang until it is released, do the work and report a failure, report success
// without doing the work, or panic. What was called is data too: [Plugin.Calls] returns it in the order in which the calls
// began, and [Plugin.AwaitCalls] waits for calls to begin, so that a test needs no sleep.
//
// # Guarantees
//
// Everything may be used from several goroutines at once. Nothing here imports testing or waits for time to pass, so that
// the fakes work inside testing/synctest and outside of tests. The one goroutine that is ever started is that of a
// Mounter's call that a fault holds up; it ends when the fault's channel is closed.
package fake
