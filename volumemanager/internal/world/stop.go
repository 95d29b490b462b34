package world

import (
	"time"

	"github.com/volumekit/volumekit/internal/simulation"
)

// This file holds programs that end while their processes live on: what they have called and has not returned goes on, and
// another program begins in the same process when it can.

// left is how long it takes until a program that ends has abandoned the calls that do not return.
const left = 3 * time.Second

// mayStop reports whether the program on a node runs, and can be ended without its process.
func (w *World) mayStop(node string) bool {
	return w.config.Faults.Stops && w.restarter(node) != nil && w.restarter(node).Life() == Running
}

// restarter returns the program on a node, or nil when it is none that can be ended without its process.
func (w *World) restarter(node string) Restarter {
	r, ok := w.engines[node].(Restarter)
	if !ok {
		return nil
	}
	return r
}

// stopProgram ends the program on a node, and its process lives on.
func (w *World) stopProgram(node, how string) bool {
	if !w.mayStop(node) {
		return false
	}
	w.restarter(node).EndRun()
	if how == lost {
		w.sleep(left)
	}
	return true
}

// succeed holds L4 for programs that were ended: they return while the calls of the plugin hang, and once those have
// returned too, others begin in their processes.
func (c convergence) succeed() error {
	if err := c.await(Ending, "has not returned beside calls that hang", onlyWrites); err != nil {
		return err
	}
	return c.await(Ended, "has no successor although all calls have returned", always)
}

// onlyWrites leaves the calls of the plugin alone.
func onlyWrites(call simulation.Call) string {
	if isWrite(call) {
		return OK
	}
	return ""
}

// await lets calls go on with the verdict that of gives, until no program lives like this.
func (c convergence) await(life Life, what string, of func(simulation.Call) string) error {
	for until := time.Now().Add(bound); ; c.sleep(pause) {
		node := c.livesLike(life)
		if node == "" {
			return nil
		}
		if !time.Now().Before(until) {
			return &RuleError{Rule: "L4", Text: "the program of " + node + " was ended and " + what}
		}
		if err := c.calm(of); err != nil {
			return err
		}
	}
}

// livesLike returns a node whose program lives like this, or "".
func (c convergence) livesLike(life Life) string {
	for _, node := range c.nodes {
		if r := c.restarter(node); r != nil && r.Life() == life {
			return node
		}
	}
	return ""
}
