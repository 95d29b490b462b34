// Package faultrun runs a program and interferes with its system calls: it kills the program before the N-th call that
// changes the world, makes that call fail, or delays it. It is for tests, on Linux.
//
// # How it works
//
// The program runs under a seccomp filter that hands some system calls to a listener, which the runner holds: the thread
// that makes such a call sleeps in the kernel until the runner has said what becomes of it. The filter is inherited by
// every thread and every child of the program, so that one counter sees the calls of all of them. (The counter of
// strace's fault injection is one per thread, and a Go program hops between threads.)
//
// A filter can only be installed by a process for itself. So the runner starts the test binary once more; [Main], the
// first line of its TestMain, sees that it is this second process, installs the filter, sends the listener to the runner
// and becomes the program:
//
//	func TestMain(m *testing.M) {
//		faultrun.Main()
//		mounttest.Main(m)
//	}
//
// A test learns first how many calls there are, and then interferes with each of them in turn:
//
//	for n := 1; ; n++ {
//		run, err := faultrun.Start(ctx, faultrun.Program{Path: agent, Judge: faultrun.KillBefore(n)})
//		...
//		if result := run.Wait(); !result.Killed {
//			break // it has ended before it made n calls
//		}
//		... // start it again, without interference, and see that it recovers
//	}
//
// As all calls that change the world are counted, killing before call n is also killing after call n-1: every state in
// which a killed program can leave the world is seen.
//
// # Who holds the mounts
//
// Mounts of a private mount namespace go with its last process, so a program that is killed in one of its own leaves
// nothing to recover from. A [Namespace] is held by the runner: programs enter it one after the other, and what they
// mount stays until it is closed.
//
// # What it cannot do
//
// A call that has begun is not interrupted: the program is killed before it or after it, which is all that SIGKILL can do
// to it too. The kernel must be 5.19 or newer, since before that a signal, of which the Go runtime sends many, could repeat
// a call that was counted.
package faultrun
