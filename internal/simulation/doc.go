// Package simulation drives a world by one choice after the other, so that what happens depends on the choices alone: the
// same choices give the same world, on every machine.
//
// # Words
//
// A world offers [Choice]s, each a [Step] and how likely it is; a [Source] takes one: at random ([Random]), from a list
// ([Script]), or each in turn ([Explore]). [Drive] lets the world do it and asks the world whether its invariants hold.
// What the code under test asks of the outside parks in [Calls] until a step lets it go on, one at a time; the world waits
// after each step until all goroutines are blocked (testing/synctest.Wait), and records what happened in a [Trace], sorted
// within the step. So goroutines that run between two steps may run in any order, and the difference is not seen.
//
// Code of many goroutines that share memory takes [Turns] instead: one goroutine goes on at a time, and a seed decides which.
//
// A run that failed is a list of steps. [Shrink] takes out all that the failure does not need. A step that a world cannot
// do, since one before it was taken out, is skipped.
//
// This package knows nothing of volumes. volumemanager/internal/world is a world of nodes and volumes, which
// volumemanager/internal/simulationtest runs. Only tests may use the three.
//
// # Running it
//
//	go test ./volumemanager/internal/simulationtest  500 seeds, every schedule of depth 2, and the planted bugs
//	./test.sh simulation                             20,000 seeds and depth 4, without the race detector
//	make soak                                        a million seeds and depth 6
//
// The environment says more: SIMULATION_SEED=n runs one seed and, with -v, prints its trace; SIMULATION_FIRST=n and
// SIMULATION_SEEDS=n run n seeds from that one on, SIMULATION_SECONDS=n as many of them as there is time for;
// SIMULATION_DEPTH=n is how long the schedules are. A seed that fails prints the command that replays it, and the shortest
// list of steps that breaks the same rule.
package simulation
