// Package volumetest proves that a volume plugin keeps the contract of package volume, in the manner of testing/fstest:
// one call runs every case that concerns the plugin.
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
// # What it looks at
//
// The suite drives the plugin as the executor does: Init through a volume.VolumePluginMgr, then attach, wait, stage and
// set up; tear down, unstage and detach. It believes no return code: it looks at a [World] for what is mounted and with
// which flags, writes through one path and reads through another, and looks for what is abandoned: mounts, directories,
// goroutines, open files. [KernelWorld] is the machine that the test runs on; fake.Mounter is one in memory.
//
// # Rules and groups
//
// Each [Case] carries the number of a rule of docs/contract.md, and prints the rule when it fails. The groups attach,
// stage, block, provision, expand, delete, recycle and reconstruct run for a plugin that has the capability; one that is
// absent is skipped with that reason, and fails when [Config.Require] lists it. For each rule there is a plugin that breaks
// it, which the suite's own tests must see caught.
//
// The suite uses the package testing and nothing else. Cases run one after another, each in a directory of its own. After each
// the suite looks for goroutines of the case and for descriptors of the process, so that no parallel test may run beside it. A
// panic fails its case. docs/suite.md tells what the suite finds.
package volumetest
