// Package mounttest tests what mounts.
//
// It has two parts. [Main] gives a test binary a mount namespace of its own, so that its tests may mount without hurting
// the machine, as root and, in a user namespace, as an ordinary user:
//
//	func TestMain(m *testing.M) { mounttest.Main(m) }
//
//	func TestSetUp(t *testing.T) {
//		mounttest.RequireMounts(t)
//		...
//	}
//
// Where the machine allows no namespace, the tests run without one, and [RequireMounts] skips with the reason. Under CI
// (the environment has CI=true) nothing is skipped: what is missing fails the test.
//
// After the tests Main looks for what they left behind, in their own temporary directories only: mounts and loop
// devices. Anything found fails the run.
//
// [Run] is the suite that every implementation of mount.Interface passes: the kernel's, with all system calls and with
// all fall-backs, and fake.Mounter. It speaks to files through one small interface, [World].
//
// FUSE, on Linux, is a filesystem in memory whose server is the test: each operation can fail with an errno, hang, or find
// the server dead, and nothing that hangs outlives its test.
//
// When not to use it: for a test that needs no mounts, since each run of the binary costs a second process; for plugins
// use volume/volumetest, which is built on the same worlds.
package mounttest
