// Package csitest runs csi-sanity, the test suite of the specification, against the socket of a driver. It is for tests.
//
// csi-sanity can run only once in a process. So each run starts the test binary again. The first line of its TestMain
// detects that:
//
//	func TestMain(m *testing.M) {
//		csitest.Main()
//		mounttest.Main(m)
//	}
package csitest
