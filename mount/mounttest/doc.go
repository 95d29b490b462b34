// Package mounttest helps to test code that mounts.
//
// It has two parts. [Main] gives a test binary a mount namespace of its own. Its tests may then mount without harm to the
// machine, as root and, in a user namespace, as an ordinary user:
//
//	func TestMain(m *testing.M) { mounttest.Main(m) }
//
//	func TestSetUp(t *testing.T) {
//		mounttest.RequireMounts(t)
//		...
//	}
//
// If the machine allows no namespace, the tests run without one, and [RequireMounts] skips with the reason. Under CI
// (CI=true in the environment) it skips nothing: what is missing fails the test.
//
// After the tests Main looks for mounts and loop devices that they left, only in their own temporary directories. If it
// finds any, the run fails.
//
// [Run] is the suite that every implementation of mount.Interface passes: the kernel's, with all system calls and with all
// fall-backs, and fake.Mounter. It reaches files through one small interface, [World].
//
// FUSE, on Linux, is a filesystem in memory whose server is the test. Each operation can fail with an errno, hang, or find
// the server dead, and no hung operation outlives its test.
//
// Do not use it for a test that needs no mounts, because each run of the binary costs a second process. For plugins use
// volume/volumetest, which uses the same worlds.
package mounttest
