// Package volumetest checks that a volume plugin keeps the contract of package volume, in the manner of testing/fstest: one
// call runs every case that applies to the plugin.
//
//	func TestConformance(t *testing.T) {
//		world := fake.NewMounter(fake.MounterOptions{})
//		volumetest.Run(t, volumetest.Config{
//			NewPlugin: func(t testing.TB) volume.VolumePlugin { return ram.New(ram.Options{Mounter: world}) },
//			NewSpec:   func(t testing.TB) *volume.Spec { return spec("scratch") },
//			World:     world,
//			Require:   volume.CapReconstruct,
//		})
//	}
//
// # What it checks
//
// The suite calls the plugin as the executor does: Init through a volume.VolumePluginMgr, then attach, wait, stage and set up;
// tear down, unstage and detach. It does not trust a return value. It reads from a [World] what is mounted and with which
// flags, writes through one path and reads through another, and looks for leaks: mounts, directories, goroutines, open files.
// [KernelWorld] is the machine on which the test runs; fake.Mounter is a world in memory.
//
// # Rules and groups
//
// Each [Case] has the number of a rule of docs/contract.md, and prints the rule when it fails. The groups attach, stage,
// block, provision, expand, delete, recycle and reconstruct run for a plugin with the capability. Without it they are skipped
// with that reason, or fail if [Config.Require] lists it. For each rule the suite's own tests have a plugin that breaks it,
// which the suite must catch.
//
// The suite uses only package testing. Cases run one after another, each in a directory of its own. After each case the suite
// looks for its goroutines and for descriptors of the process, so no parallel test may run beside it. A panic fails its case.
// docs/suite.md says which bugs the suite finds.
package volumetest
