// Package simulation drives a simulated world by one choice after the other. Everything that happens depends on the choices alone:
// the same choices give the same run on every machine.
//
// # Words
//
// A world offers [Choice]s: each is a [Step] and its probability. A [Source] selects one: at random ([Random]), from a list
// ([Script]), or each in turn ([Explore]). [Drive] makes the world do the step, and checks the world's invariants. Calls of the code
// under test to the outside wait in [Calls] until a step lets one of them continue. After each step the world waits until all
// goroutines are blocked (testing/synctest.Wait). It records what happened in a [Trace], sorted within the step. So the order of the
// goroutines between two steps makes no difference to the trace.
//
// Code in which many goroutines share memory uses a [Scheduler] instead: one goroutine runs at a time, and a seed decides which.
//
// A failed run is a list of steps. [Shrink] removes the steps that the failure does not need. If a world cannot do a step because an
// earlier one was removed, it skips the step.
//
// This package knows nothing about volumes. volumemanager/internal/world is a world of nodes and volumes, and
// volumemanager/internal/simulationtest runs it. Only tests may use these three packages.
//
// # Running it
//
//	go test ./volumemanager/internal/simulationtest  500 seeds, every schedule of depth 2, and the planted bugs
//	./test.sh simulation                             20,000 seeds and depth 4, without the race detector
//	make soak                                        a million seeds and depth 6
//
// Variables of the environment change that:
//
//   - SIMULATION_SEED=n runs one seed. With -v it prints the trace.
//   - SIMULATION_FIRST=n is the first seed, SIMULATION_SEEDS=n the number of seeds.
//   - SIMULATION_SECONDS=n runs as many seeds as fit into that time.
//   - SIMULATION_DEPTH=n is the length of the schedules.
//
// A seed that fails prints the command that replays it, and the shortest list of steps that breaks the same rule.
package simulation
