package main

import (
	"fmt"
	"os"
	"sync"

	"github.com/volumekit/volumekit/internal/faultrun"
)

// aim interferes with one call of a life. Calls are counted from where the aim was taken, over all agents.
type aim struct {
	mu      sync.Mutex
	at      int // the number of the call; 0: none
	verdict faultrun.Verdict
	made    int    // calls since
	point   string // the call with which was interfered, as spell shows it
	number  uint32 // of the system call
	again   bool   // it was made once more
	// ignores says which calls are not counted; nil: none.
	ignores func(faultrun.Call) bool
	sample  sample
	ofTools int // calls since, of programs other than the agent
}

// sample is which calls of the programs that the agent starts, such as mkfs.ext4, are counted: each so many, from one of the first
// on. Those of the agent are all counted.
type sample struct{ every, from int }

// leavesOut reports whether call number n, from 1, of such a program is not counted.
func (s sample) leavesOut(n int) bool { return s.every > 0 && n%s.every != s.from }

// take aims at a call.
func (a *aim) take(at int, verdict faultrun.Verdict) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.at, a.verdict, a.made, a.ofTools, a.point, a.again = at, verdict, 0, 0, "", false
}

// repeated reports whether the call with which was interfered was made once more.
func (a *aim) repeated() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.again
}

// rest returns the call with which was interfered, if any, and how many were made. There is no aim any more.
func (a *aim) rest() (point string, made int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.at = 0
	return a.point, a.made
}

// judge is a faultrun.Judge.
func (a *aim) judge(call faultrun.Call) faultrun.Verdict {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ignores != nil && a.ignores(call) {
		return faultrun.Verdict{}
	}
	if call.Program() != agentProgram {
		a.ofTools++
		if a.sample.leavesOut(a.ofTools) {
			return faultrun.Verdict{}
		}
	}
	a.made++
	a.again = a.again || a.point != "" && call.Number == a.number && alike(spell(call)) == alike(a.point)
	if a.made != a.at {
		return faultrun.Verdict{}
	}
	a.point, a.number = spell(call), call.Number
	return a.verdict
}

// alike is a call without the number of its loop device: once more may be with the next free one.
func alike(call string) string { return loopDevice.ReplaceAllString(call, "/dev/loop*") }

// agentProgram is the name of the agent's process.
const agentProgram = "orchestrator"

// spell shows a call, after the name of the program that makes it unless that is the agent itself.
func spell(call faultrun.Call) string {
	if program := call.Program(); program != agentProgram {
		return program + ": " + call.String()
	}
	return call.String()
}

// envAll asks for every case of the tests that interfere with the agent, which takes minutes.
const envAll = "ORCHESTRATOR_ALL"

// task is one call of a step, and which of several ways to interfere with it.
type task struct{ call, variant, tries int }

// tasks are calls of all steps: all of them, or every so many, each in one of the variants in turn; or all in all variants.
type tasks struct {
	variants, every int
	all             bool
	calls           []int // how many each step has when nothing goes wrong

	mu     sync.Mutex
	given  []int
	again  [][]task
	done   []bool
	absent []string // calls that were made once, and did not come any more, with how many came instead
}

func newTasks(variants, every int, calls []int) *tasks {
	return &tasks{
		variants: variants, every: every, all: os.Getenv(envAll) != "", calls: calls,
		given: make([]int, len(calls)), again: make([][]task, len(calls)), done: make([]bool, len(calls)),
	}
}

// next returns the next task of a step, unless there is none.
func (t *tasks) next(step int) (task, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.done[step] {
		if len(t.again[step]) == 0 {
			return task{}, false
		}
		first := t.again[step][0]
		t.again[step] = t.again[step][1:]
		return first, true
	}
	i := t.given[step]
	t.given[step]++
	if t.all {
		return task{call: 1 + i/t.variants, variant: i % t.variants}, true
	}
	return task{call: 1 + i*t.every, variant: i % t.variants}, true
}

// maxTries is how often a call is waited for that was made when nothing went wrong. How many calls there are depends a little
// on which of two threads is the first.
const maxTries = 8

// missed says that the call of a task did not come, and how many did. It is tried once more in another life, unless it is
// one of those that never came.
func (t *tasks) missed(step int, one task, made int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	one.tries++
	switch {
	case one.call > t.calls[step]:
		t.done[step] = true
	case one.tries < maxTries:
		t.again[step] = append(t.again[step], one)
	default:
		t.absent = append(t.absent, fmt.Sprintf("call %d of %q, which then had %d, in %d lives", one.call, steps()[step].name, made, maxTries))
	}
}

// left reports whether there is anything to do.
func (t *tasks) left() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for step, done := range t.done {
		if !done || len(t.again[step]) > 0 {
			return true
		}
	}
	return false
}
