// Package simulationtest runs simulated worlds in tests: each in a bubble of virtual time (testing/synctest), from a seed or
// from a list of steps, and says of one that failed all that is needed to see it again.
package simulationtest
