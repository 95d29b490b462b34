package world

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/volumekit/volumekit/internal/simulation"
)

// The bounds of liveness, in virtual time and in calls. An engine is expected to use Timeout for each call, to leave calls
// behind after a second, and to wait at most MaxBackoff after failures.
const (
	// Timeout is the deadline of each call.
	Timeout = 20 * time.Second
	// MaxBackoff is the longest wait after failures.
	MaxBackoff = 8 * time.Second

	bound = 3 * (Timeout + MaxBackoff)
	pause = time.Second
)

// Converge stops all faults and holds the rules of liveness: pods get ready while the calls of the sick volume hang and
// those of the broken pod fail; then, all calls succeeding, what is wanted is there and nothing else; then the same with
// nothing wanted, and once more after every program was killed; and the programs stop.
func (w *World) Converge() error {
	w.make()
	if err := w.succeed(); err != nil {
		return err
	}
	if err := w.becomeReady(); err != nil {
		return err
	}
	if err := w.settle("wanted"); err != nil {
		return err
	}
	if err := w.stayQuiet(); err != nil {
		return err
	}
	for _, pod := range w.config.Pods {
		w.wish(pod.Name, false)
	}
	if err := w.settle("nothing"); err != nil {
		return err
	}
	if err := w.restartAll(); err != nil {
		return err
	}
	return w.stop()
}

// make makes what is wanted possible, where several pods want what only one can have.
func (w *World) make() {
	w.trace.Step("faults stop")
	w.mu.Lock()
	var stay []Pod
	var others []string
	for _, pod := range w.config.Pods {
		switch {
		case !w.desired[pod.Name]:
		case slices.ContainsFunc(stay, func(p Pod) bool { return w.excludes(p, pod) }):
			others = append(others, pod.Name)
		default:
			stay = append(stay, pod)
		}
	}
	w.mu.Unlock()
	for _, name := range others {
		w.wish(name, false)
	}
}

// resync tells the programs what somebody else has unmounted, once more: a call that was going on may have ended since. Those
// who make good by themselves what could not be written get their time for it.
func (w *World) resync() {
	w.mu.Lock()
	lost := sorted(w.foreign)
	w.mu.Unlock()
	for _, at := range lost {
		w.engines[at.Node].MountLost(at.Volume, at.Pod)
	}
	for _, node := range w.nodes {
		if r, ok := w.engines[node].(Resyncer); ok {
			r.Resync()
			w.options.Wait()
		}
	}
}

// excludes reports whether two pods want a volume that only one of them can have.
func (w *World) excludes(a, b Pod) bool {
	return slices.ContainsFunc(a.Volumes, func(v string) bool {
		return slices.Contains(b.Volumes, v) && w.volumes[v].excludes(a, b)
	})
}

// becomeReady holds L3, and L5 for what fails again and again.
func (w *World) becomeReady() error {
	until := time.Now().Add(bound)
	before := w.callsMade()
	for {
		if err := w.calm(w.verdictWithTrouble); err != nil {
			return err
		}
		missing := w.missing()
		if len(missing) == 0 {
			break
		}
		if !time.Now().Before(until) {
			return &RuleError{Rule: "L3", Text: "not ready although healthy: " + missing[0]}
		}
		w.sleep(pause)
	}
	for range w.troubled() {
		w.sleep(pause)
		if err := w.calm(w.verdictWithTrouble); err != nil {
			return err
		}
	}
	// What fails waits longer each time; what hangs is called once. The time that has passed is at most bound and 20 s.
	attempts := 8 + int((bound+20*time.Second)/MaxBackoff)
	if made := w.callsMade() - before; made > attempts*8*w.size() {
		return &RuleError{Rule: "L5", Text: "calls that fail are made again and again without a wait"}
	}
	return nil
}

// troubled is for how many pauses the others are looked at while something hangs or fails; none when nothing does.
func (w *World) troubled() int {
	if w.config.Sick == "" && w.config.Broken == "" {
		return 0
	}
	return 20
}

// size is how much there is in the world.
func (w *World) size() int {
	n := 1
	for _, pod := range w.config.Pods {
		n += len(pod.Volumes)
	}
	return n
}

// calm kicks everybody and lets calls go on with the verdict that of gives, or leaves them when it gives none, until
// nothing happens any more at this time.
func (w *World) calm(of func(call simulation.Call) string) error {
	w.resync()
	for range 60 * w.size() {
		w.kickAll()
		w.reportAll()
		released := false
		for _, call := range w.calls.Waiting() {
			verdict := of(call)
			if verdict == "" {
				continue
			}
			w.trace.Step(time.Since(w.began).String() + " calm " + call.Label + " " + verdict)
			released = w.calls.Release(call.Label, verdict) || released
			w.options.Wait()
		}
		if err := w.Check(); err != nil {
			return err
		}
		if !released {
			return nil
		}
	}
	return &RuleError{Rule: "L5", Text: "calls are made without end"}
}

func always(simulation.Call) string { return OK }

// isWrite reports whether a call is none of the plugin.
func isWrite(call simulation.Call) bool {
	return slices.Contains([]string{"Intend", "Conclude", "Record", "WriteStatus", "WriteInUse", "SeeStatus"}, call.Name)
}

// verdictWithTrouble leaves the calls of the sick volume alone and fails the set-ups of the broken pod.
func (w *World) verdictWithTrouble(call simulation.Call) string {
	at := atOf(call)
	switch {
	case isWrite(call):
		return OK
	case w.config.Sick != "" && at.Volume == w.config.Sick:
		return ""
	case (call.Name == "SetUp" || call.Name == "MapDevice") && w.config.Broken != "" && at.Pod == w.config.Broken:
		return Unsure
	}
	return OK
}

// missing returns the pods that are wanted, not ready, and need nothing that is in trouble.
func (w *World) missing() []string {
	var names []string
	for _, pod := range w.config.Pods {
		w.mu.Lock()
		wanted := w.desired[pod.Name]
		w.mu.Unlock()
		troubled := pod.Name == w.config.Broken || slices.Contains(pod.Volumes, w.config.Sick)
		if wanted && !troubled && !w.engines[pod.Node].Belief().Ready[pod.Name] {
			names = append(names, pod.Name)
		}
	}
	return names
}

// settle holds L1 and L2: with all calls succeeding, what is wanted is there, and nothing else. And L5.
func (w *World) settle(what string) error {
	before, until := w.callsMade(), time.Now().Add(bound)
	for {
		if err := w.calm(always); err != nil {
			return err
		}
		err := w.difference()
		if err == nil {
			break
		}
		if !time.Now().Before(until) {
			return err
		}
		w.sleep(pause)
	}
	w.trace.Step("settled: " + what)
	if made := w.callsMade() - before; made > 12*w.size() {
		return &RuleError{Rule: "L5", Text: "more calls than changes"}
	}
	return nil
}

// stayQuiet holds L5: nothing is called when nothing changes.
func (w *World) stayQuiet() error {
	w.sleep(MaxBackoff) // What was to be refreshed and failed may still wait.
	if err := w.calm(always); err != nil {
		return err
	}
	before := w.callsMade()
	for range 5 {
		w.sleep(time.Minute)
		if err := w.calm(always); err != nil {
			return err
		}
	}
	if w.callsMade() != before {
		return &RuleError{Rule: "L5", Text: "calls are made although nothing changes"}
	}
	return nil
}

// restartAll holds L2 for the records that could not be written when an operation ended: the next life finds them.
func (w *World) restartAll() error {
	for _, node := range w.nodes {
		w.trace.Step("crash " + node)
		w.kill(node)
		if err := w.start(node); err != nil {
			return err
		}
	}
	return w.settle("nothing, after a crash")
}

// stop holds L4.
func (w *World) stop() error {
	for _, node := range w.nodes {
		ctx, cancel := context.WithTimeout(w.options.Context, bound)
		err := w.engines[node].Stop(ctx)
		cancel()
		if err != nil {
			return &RuleError{Rule: "L4", Text: err.Error()}
		}
	}
	if waiting := w.calls.Waiting(); len(waiting) > 0 {
		return &RuleError{Rule: "L4", Text: waiting[0].Label + " still waits"}
	}
	return nil
}

// difference returns in what the truth, the records and what is believed differ from what is wanted.
func (w *World) difference() error {
	beliefs := w.beliefs()
	w.mu.Lock()
	defer w.mu.Unlock()
	attached, staged, mounted := w.wanted()
	for at := range mounted {
		if !w.isWhole(at) && !w.foreign[at] {
			return &RuleError{Rule: "L1", Text: at.String() + " is wanted and not mapped wholly"}
		}
	}
	return cmp.Or(
		w.unready(beliefs),
		w.misplaced("attached", w.attached, attached),
		w.misplaced("staged", w.staged, staged),
		w.misplaced("set up", w.mounted, mounted),
		w.outdated(mounted),
		w.small(mounted),
		w.stillRunning(),
		w.leftOnRecord(attached, staged, mounted),
	)
}

// unready returns a pod that is wanted and not ready.
func (w *World) unready(beliefs map[string]Belief) error {
	for _, pod := range w.config.Pods {
		if w.desired[pod.Name] && !beliefs[pod.Node].Ready[pod.Name] {
			return &RuleError{Rule: "L1", Text: pod.Name + " is wanted and not ready"}
		}
	}
	return nil
}

// misplaced returns an effect that is not there and should be, or that is and should not.
func (w *World) misplaced(what string, is, shouldBe map[At]bool) error {
	for _, at := range sorted(shouldBe) {
		// What was unmounted by somebody else is staged again for the next pod; those that have it keep it.
		if !is[at] && !w.foreign[at] {
			return &RuleError{Rule: "L1", Text: at.String() + " is wanted and not " + what}
		}
	}
	for _, at := range sorted(is) {
		if !shouldBe[at] {
			return &RuleError{Rule: "L2", Text: at.String() + " is not wanted and still " + what}
		}
	}
	return nil
}

// outdated returns a set-up that began before the last update of its pod and that should have been refreshed.
func (w *World) outdated(mounted map[At]bool) error {
	for _, at := range sorted(mounted) {
		if w.volumes[at.Volume].Remountable && w.refreshed[at] != w.updates[at.Pod] {
			return &RuleError{Rule: "L1", Text: at.String() + " was not set up again after its pod was updated"}
		}
	}
	return nil
}

// stillRunning returns a node on which operations run.
func (w *World) stillRunning() error {
	for _, node := range w.nodes {
		if len(w.processes[node].running) > 0 {
			return &RuleError{Rule: "L1", Text: "operations of " + node + " still run"}
		}
	}
	return nil
}

// wanted returns the effects that the pods need.
func (w *World) wanted() (attached, staged, mounted map[At]bool) {
	attached, staged, mounted = map[At]bool{}, map[At]bool{}, map[At]bool{}
	for _, pod := range w.config.Pods {
		if !w.desired[pod.Name] {
			continue
		}
		for _, name := range pod.Volumes {
			whole := At{Node: pod.Node, Volume: name}
			if w.volumes[name].Attachable {
				attached[whole] = true
			}
			if w.volumes[name].Stageable {
				staged[whole] = true
			}
			mounted[At{Node: pod.Node, Volume: name, Pod: pod.Name}] = true
		}
	}
	return attached, staged, mounted
}

// leftOnRecord returns what is on record and not wanted. It may be, where the journal could not be written and the program
// does not try that again.
func (w *World) leftOnRecord(attached, staged, mounted map[At]bool) error {
	for _, node := range w.nodes {
		if _, writesAgain := w.engines[node].(Resyncer); w.stale[node] && !writesAgain {
			continue
		}
		for _, key := range slices.SortedFunc(maps.Keys(w.records[node]), recordKey.compare) {
			r := w.records[node][key]
			whole := At{Node: cmp.Or(r.Node, node), Volume: w.inner[r.Name]}
			left := r.Attached && !attached[whole] || r.Staged != "" && !staged[whole] && !w.isMapped(whole, mounted)
			for uid := range r.Pods {
				left = left || !mounted[At{Node: node, Volume: whole.Volume, Pod: string(uid)}]
			}
			if left {
				return &RuleError{Rule: "L2", Text: whole.String() + " is not wanted and still on record"}
			}
		}
	}
	return nil
}

// isMapped reports whether a block volume has pods: the directory of their binds is on record as its staging is.
func (w *World) isMapped(whole At, mounted map[At]bool) bool {
	for at := range mounted {
		if at.Node == whole.Node && at.Volume == whole.Volume && w.volumes[at.Volume].Block {
			return true
		}
	}
	return false
}

// sleep lets time pass, and what it wakes come to rest.
func (w *World) sleep(d time.Duration) {
	w.options.Sleep(d)
	w.options.Wait()
}

func (w *World) callsMade() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.made
}
