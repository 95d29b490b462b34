// Package bench measures this project beside Kubernetes: the same work on the same trees, mounts and devices, in one
// run. It is a module of its own because it needs all of k8s.io/kubernetes, whose Go version (1.26) it therefore has,
// newer than that of the library (1.25). Nothing imports it, and CI does not run it: a time on a shared machine is no
// assertion.
//
// # Words
//
// A benchmark is named Group/size=.../impl=x. The implementations are
//
//   - k8s: Kubernetes 1.36.3's own package, called through its exported functions, with its logging discarded;
//   - ours: this project through its exported API, as a program that embeds it would call it;
//   - du, chgrp, chgrp+chmod and mount(8): the usual commands;
//   - limit...: hand-written system calls without any product around them (package limits), to show how far the kernel
//     lets any program go.
//
// A round measures every implementation once, so that neighbours in time are compared, and a ratio is taken within a
// round. A goal is a line of the table that run.sh prints; package summary holds them as data.
//
// # How to run
//
//	./run.sh          # all groups, then the table; about 15 minutes; needs root
//	./run.sh 7a 8     # some groups
//	go test -run Agrees .
//
// The tests whose names contain Agrees prove that the implementations do the same work: same bytes, same modes and
// groups, same mounts. They and the benchmarks run in a mount namespace of their own and leave nothing behind.
//
// # How to add a group
//
// Write a Benchmark function in a file named by what it measures, add a line to group in run.sh, and a row to the goals
// of package summary. See docs/benchmarks.md for the figures and for what to beware of.
package bench
