// Package limits does the work of each benchmark with bare system calls: relative to descriptors, in parallel, without
// a product around them. It shows how much a machine allows. It is a measuring stick and no library: it handles what
// the benchmarks need and no more, keeps no promise, and is used by nothing else.
package limits
