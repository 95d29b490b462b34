// Package csitest runs csi-sanity, the test suite of the specification, against the socket of a driver. It is for tests.
//
// csi-sanity can run once in a process. So each run is a process of its own: the test binary, started again. The first line of its
// TestMain sees that:
//
//	func TestMain(m *testing.M) {
//		csitest.Main()
//		mounttest.Main(m)
//	}
package csitest
