// Package simulation drives a world by one choice after the other, so that what happens depends on the choices alone: the
// same choices give the same world, on every machine.
//
// # Words
//
// A world offers [Choice]s, each a [Step] and how likely it is; a [Source] takes one: at random ([Random]), from a list
// ([Script]), or each in turn ([Explore]). [Drive] lets the world do it and asks the world whether its invariants hold.
// What the code under test asks of the outside parks in [Calls] until a step lets it go on, one at a time; the world waits
// after each step until all goroutines are blocked (testing/synctest.Wait), and records what happened in a [Trace], sorted
// within the step. So goroutines that run between two steps may run in any order, and still nobody sees the difference.
//
// A run that failed is a list of steps. [Shrink] takes out all that the failure does not need. A step that a world cannot
// do, since one before it was taken out, is skipped.
//
// This package knows nothing of volumes; the package world, below it, does. Only tests may use either.
//
// # Running it
//
//	go test ./internal/simulation                                       500 seeds, schedules of depth 2
//	SIMULATION_SEEDS=20000 SIMULATION_DEPTH=4 go test ./internal/simulation
//	SIMULATION_SEED=1234 go test -run TestSeeds -v ./internal/simulation   one seed, with its trace, shrunk when it fails
//	SIMULATION_FIRST=1000000 SIMULATION_SEEDS=20000 go test ...            other seeds
//	SIMULATION_TIME=2m SIMULATION_SEEDS=1000000 go test ...                as many of them as there is time for
package simulation
