// Package simulationtest runs simulated worlds in tests. Each world has its own bubble of virtual time
// (testing/synctest) and runs from a seed or from a list of steps. For a failed run it prints everything that is needed
// to reproduce it.
package simulationtest
