package world

import (
	"time"

	"github.com/volumekit/volumekit/internal/simulation"
)

// This file handles programs that end while their processes live on: their calls that have not returned continue, and
// another program starts in the same process when possible.

// left is the time in which an ending program abandons the calls that do not return.
const left = 3 * time.Second

// mayStop reports whether the program on a node runs, and can end without its process.
func (w *World) mayStop(node string) bool {
	return w.config.Faults.Stops && w.restarter(node) != nil && w.restarter(node).Life() == Running
}

// restarter returns the program on a node, or nil if it cannot end without its process.
func (w *World) restarter(node string) Restarter {
	r, ok := w.engines[node].(Restarter)
	if !ok {
		return nil
	}
	return r
}

// stopProgram ends the program on a node; its process lives on.
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

// awaitEnded checks L4 for programs that were ended: they return while calls of the plugin hang, and when those have returned
// too, other programs start in their processes.
func (c convergence) awaitEnded() error {
	if err := c.await(Ending, "has not returned beside calls that hang", onlyWrites); err != nil {
		return err
	}
	return c.await(Ended, "has no successor although all calls have returned", always)
}

// onlyWrites leaves the calls of the plugin waiting.
func onlyWrites(call simulation.Call) string {
	if isWrite(call) {
		return OK
	}
	return ""
}

// await lets calls continue with the verdict that of returns, until no program is in this state.
func (c convergence) await(life Life, what string, of func(simulation.Call) string) error {
	for until := time.Now().Add(bound); ; c.sleep(pause) {
		node := c.nodeIn(life)
		if node == "" {
			return nil
		}
		if !time.Now().Before(until) {
			return &RuleError{Rule: "L4", Text: "the program of " + node + " was ended and " + what}
		}
		if err := c.runUntilIdle(of); err != nil {
			return err
		}
	}
}

// nodeIn returns a node whose program is in this state, or "".
func (c convergence) nodeIn(life Life) string {
	for _, node := range c.nodes {
		if r := c.restarter(node); r != nil && r.Life() == life {
			return node
		}
	}
	return ""
}
