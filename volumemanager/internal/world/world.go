package world

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/internal/simulation"
)

// World is a set of nodes, volumes and pods. Make it with [New]; [World.Close] ends it. Only one goroutine, the
// driver's, calls its methods.
type World struct {
	*configuration

	options Options
	trace   *simulation.Trace
	calls   simulation.Calls
	began   time.Time

	// Only the driver uses the fields below.
	engines   map[string]Engine
	processes map[string]*Process
	choices   []simulation.Choice

	mu sync.Mutex
	truth
	journals
	// used holds the set-ups of pods that were ready and have been wanted since.
	used map[At]bool
	// outlived holds the set-ups of a pod, finished or running, when the program was told of its removal. It holds them
	// until the next mount begins there.
	outlived map[At]bool
	desired  map[string]bool
	pods     map[string]*v1.Pod
	remade
	// updates counts the updates of each pod. refreshed is that count at the begin of the last successful set-up.
	updates   map[string]int
	refreshed map[At]int
	sizes
	// inUse and reported are the status of each node: its volumes in use, and its volumes attached.
	inUse    map[string][]v1.UniqueVolumeName
	reported map[string]map[v1.UniqueVolumeName]string
	// boots counts the reboots of each node.
	boots       map[string]int
	pluginCalls map[*pluginCall]bool
	made        int // calls of the plugin
	faults      []error
}

// New returns a world without attachments and pods, with all programs started.
func New(config Config, options Options) (*World, error) {
	w := &World{
		configuration: newConfiguration(config), options: options, trace: options.Trace, began: time.Now(),
		pods: map[string]*v1.Pod{}, remade: newRemade(config), boots: map[string]int{}, engines: map[string]Engine{}, processes: map[string]*Process{},
		truth: truth{
			attached: map[At]bool{}, staged: map[At]bool{}, mounted: map[At]bool{}, mountIDs: map[At]uint64{}, parts: map[At]part{}, foreign: map[At]bool{},
		},
		journals: journals{records: map[string]map[recordKey]*Record{}, stale: map[string]bool{}, misled: map[string]bool{}},
		used:     map[At]bool{}, outlived: map[At]bool{}, desired: map[string]bool{}, updates: map[string]int{}, refreshed: map[At]int{},
		inUse: map[string][]v1.UniqueVolumeName{}, reported: map[string]map[v1.UniqueVolumeName]string{},
		sizes:       sizes{requested: map[string]int{}, expanded: map[At]int{}, promised: map[At]int{}, refused: map[string]string{}},
		pluginCalls: map[*pluginCall]bool{},
	}
	for _, p := range config.Pods {
		w.pods[p.Name] = w.podObject(p)
	}
	for _, node := range w.nodes {
		w.records[node] = map[recordKey]*Record{}
		if err := w.start(node); err != nil {
			return nil, err
		}
	}
	return w, nil
}

// start starts the program on a node.
func (w *World) start(node string) error {
	p, err := w.newProcess(node)
	if err != nil {
		return err
	}
	w.processes[node] = p
	w.change(func() { w.findRecords(node) })
	p.Forgets()
	w.engines[node] = w.options.Start(p)
	w.options.Wait()
	return nil
}

// kill kills the program on a node: nothing that it was doing has an effect any more.
func (w *World) kill(node string) {
	p := w.processes[node]
	w.change(func() {
		p.dead = true
		clear(p.operations.running)
		for f := range w.pluginCalls {
			if f.process == p {
				delete(w.pluginCalls, f)
			}
		}
	})
	w.calls.Drop(p, killed)
	p.cancel()
	w.options.Wait()
}

// Close kills all programs. No goroutine is left.
func (w *World) Close() {
	for _, node := range w.nodes {
		w.kill(node)
	}
}

// change runs f under the lock.
func (w *World) change(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
}

// note adds to the trace.
func (w *World) note(format string, args ...any) {
	w.trace.Note(fmt.Sprintf(format, args...))
}

// RuleError says which rule is broken.
type RuleError struct {
	// Rule is its name, such as "S1".
	Rule string
	// Text describes the failure.
	Text string
}

// Error returns the rule and the text.
func (e *RuleError) Error() string { return e.Rule + ": " + e.Text }

// broken records that a rule is broken. The caller holds the lock.
func (w *World) broken(rule, format string, args ...any) {
	w.faults = append(w.faults, &RuleError{Rule: rule, Text: fmt.Sprintf(format, args...)})
}

// fault returns the first of the faults by their text, because goroutines find them in any order. The caller holds the
// lock.
func (w *World) fault() error {
	slices.SortFunc(w.faults, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	if len(w.faults) == 0 {
		return nil
	}
	return w.faults[0]
}
