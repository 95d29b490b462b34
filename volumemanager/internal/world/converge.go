package world

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/volumekit/volumekit/internal/simulation"
)

// The bounds of liveness, in virtual time and in calls. An engine must use Timeout for each call, abandon calls after a
// further second, and wait at most MaxBackoff after failures.
const (
	// Timeout is the deadline of each call.
	Timeout = 20 * time.Second
	// MaxBackoff is the longest wait after failures.
	MaxBackoff = 8 * time.Second

	bound = 3 * (Timeout + MaxBackoff)
	pause = time.Second
)

// Converge stops all faults and checks the rules of liveness. First, pods must get ready while the calls of the sick
// volume hang and those of the broken pod fail. Then all calls succeed: the desired state must be reached, and nothing
// else may be left. The same must hold with no pods, and again after every program was killed. At last the programs
// must stop.
func (w *World) Converge() error { return convergence{w}.run() }

// convergence is the end of a run: it lets a world settle, and checks the rules of liveness.
type convergence struct{ *World }

func (c convergence) run() error {
	c.removeConflicts()
	c.makeMissing()
	if err := c.awaitEnded(); err != nil {
		return err
	}
	if err := c.changeBroken(); err != nil {
		return err
	}
	if err := c.becomeReady(); err != nil {
		return err
	}
	if err := c.settle("wanted"); err != nil {
		return err
	}
	if err := c.stayQuiet(); err != nil {
		return err
	}
	for _, pod := range c.config.Pods {
		c.setWanted(pod.Name, false)
	}
	if err := c.settle("nothing"); err != nil {
		return err
	}
	if err := c.restartAll(); err != nil {
		return err
	}
	return c.stop()
}

// removeConflicts removes pods until the desired state is possible: no two pods need a volume that only one can have.
func (c convergence) removeConflicts() {
	c.trace.Step("faults stop")
	c.mu.Lock()
	var stay []Pod
	var others []string
	for _, pod := range c.config.Pods {
		switch {
		case !c.desired[pod.Name]:
		case slices.ContainsFunc(stay, func(p Pod) bool { return c.excludes(p, pod) }):
			others = append(others, pod.Name)
		default:
			stay = append(stay, pod)
		}
	}
	c.mu.Unlock()
	for _, name := range others {
		c.setWanted(name, false)
	}
}

// resync reports the unmounts by other programs again: a call that was running at the time may have ended since.
// Programs that retry failed writes of records get the time for it.
func (c convergence) resync() {
	c.mu.Lock()
	lost := sorted(c.foreign)
	c.mu.Unlock()
	for _, at := range lost {
		c.engines[at.Node].MountLost(at.Volume, at.Pod)
	}
	for _, node := range c.nodes {
		if r, ok := c.engines[node].(Resyncer); ok {
			r.Resync()
			c.options.Wait()
		}
	}
}

// excludes reports whether two pods need a volume that only one of them can have.
func (c convergence) excludes(a, b Pod) bool {
	return slices.ContainsFunc(a.Volumes, func(v string) bool {
		return slices.Contains(b.Volumes, v) && c.volumes[v].excludes(a, b)
	})
}

// becomeReady checks L3, and L5 for repeated failures.
func (c convergence) becomeReady() error {
	until := time.Now().Add(bound)
	before := c.callsMade()
	for {
		if err := c.runUntilIdle(c.faultyVerdict); err != nil {
			return err
		}
		missing := c.missing()
		if len(missing) == 0 {
			break
		}
		if !time.Now().Before(until) {
			return &RuleError{Rule: "L3", Text: "not ready although healthy: " + missing[0]}
		}
		c.sleep(pause)
	}
	for range c.faultyPauses() {
		c.sleep(pause)
		if err := c.runUntilIdle(c.faultyVerdict); err != nil {
			return err
		}
	}
	// A failed operation waits longer each time; a hung call is made once. The time that has passed is at most bound
	// and 20 s.
	attempts := 8 + int((bound+20*time.Second)/MaxBackoff)
	if made := c.callsMade() - before; made > attempts*8*c.size() {
		return &RuleError{Rule: "L5", Text: "calls that fail are made again and again without a wait"}
	}
	return nil
}

// faultyPauses returns for how many pauses the healthy pods are checked while a call hangs or fails; zero if none does.
func (c convergence) faultyPauses() int {
	if c.config.Sick == "" && c.config.Broken == "" {
		return 0
	}
	return 20
}

// size is the number of objects in the world.
func (c convergence) size() int {
	n := 1
	for _, pod := range c.config.Pods {
		n += len(pod.Volumes)
	}
	return n
}

// runUntilIdle kicks all programs. It lets calls continue with the verdict that of returns, or leaves a call waiting if of
// returns none, until nothing more happens at this time.
func (c convergence) runUntilIdle(of func(call simulation.Call) string) error {
	c.resync()
	for range 60 * c.size() {
		c.kickAll()
		c.reportAll()
		released := false
		for _, call := range c.calls.Waiting() {
			verdict := of(call)
			if verdict == "" {
				continue
			}
			c.trace.Step(time.Since(c.began).String() + " calm " + call.Label + " " + verdict)
			released = c.calls.Release(call.Label, verdict) || released
			c.options.Wait()
		}
		if err := c.Check(); err != nil {
			return err
		}
		if !released {
			return nil
		}
	}
	return &RuleError{Rule: "L5", Text: "calls are made without end"}
}

func always(simulation.Call) string { return OK }

// isWrite reports whether a call is not one of the plugin.
func isWrite(call simulation.Call) bool {
	return slices.Contains([]string{"Intend", "Conclude", "Record", "WriteStatus", "WriteInUse", "SeeStatus", "Pause"}, call.Name)
}

// faultyVerdict leaves the calls of the sick volume waiting and fails the set-ups of the broken pod. Its teardowns fail, too, if it
// has asked for other storage.
func (c convergence) faultyVerdict(call simulation.Call) string {
	at := atOf(call)
	switch {
	case isWrite(call):
		return OK
	case c.config.Sick != "" && c.places[at.Volume] == c.config.Sick:
		return ""
	case (call.Name == "SetUp" || call.Name == "MapDevice") && c.config.Broken != "" && at.Pod == c.config.Broken:
		return Unsure
	case call.Name == "TearDown" && c.config.Broken != "" && at.Pod == c.config.Broken && c.wantsOtherNow(at):
		return Final
	}
	return OK
}

// missing returns the pods that are wanted and not ready, and that need neither the sick volume nor the broken pod's.
func (c convergence) missing() []string {
	var names []string
	for _, pod := range c.config.Pods {
		c.mu.Lock()
		wanted := c.desired[pod.Name]
		c.mu.Unlock()
		faulty := pod.Name == c.config.Broken || slices.Contains(pod.Volumes, c.config.Sick)
		if wanted && !faulty && !c.engines[pod.Node].Belief().Ready[pod.Name] {
			names = append(names, pod.Name)
		}
	}
	return names
}

// settle checks L1 and L2 while all calls succeed: the desired state is reached, and nothing else is left. It also
// checks L5.
func (c convergence) settle(what string) error {
	before, until := c.callsMade(), time.Now().Add(bound)
	for {
		if err := c.runUntilIdle(always); err != nil {
			return err
		}
		err := c.difference()
		if err == nil {
			break
		}
		if !time.Now().Before(until) {
			return err
		}
		c.sleep(pause)
	}
	c.trace.Step("settled: " + what)
	if made := c.callsMade() - before; made > 12*c.size() {
		return &RuleError{Rule: "L5", Text: "more calls than changes"}
	}
	return nil
}

// stayQuiet checks L5: no call is made while nothing changes.
func (c convergence) stayQuiet() error {
	c.sleep(MaxBackoff) // A failed refresh may still wait.
	if err := c.runUntilIdle(always); err != nil {
		return err
	}
	before := c.callsMade()
	for range 5 {
		c.sleep(time.Minute)
		if err := c.runUntilIdle(always); err != nil {
			return err
		}
	}
	if c.callsMade() != before {
		return &RuleError{Rule: "L5", Text: "calls are made although nothing changes"}
	}
	return nil
}

// restartAll checks L2 for the records that could not be written at the end of an operation: the next program finds
// them.
func (c convergence) restartAll() error {
	for _, node := range c.nodes {
		c.trace.Step("crash " + node)
		c.kill(node)
		if err := c.start(node); err != nil {
			return err
		}
	}
	return c.settle("nothing, after a crash")
}

// stop checks L4.
func (c convergence) stop() error {
	for _, node := range c.nodes {
		ctx, cancel := context.WithTimeout(c.options.Context, bound)
		err := c.engines[node].Stop(ctx)
		cancel()
		if err != nil {
			return &RuleError{Rule: "L4", Text: err.Error()}
		}
	}
	if waiting := c.calls.Waiting(); len(waiting) > 0 {
		return &RuleError{Rule: "L4", Text: waiting[0].Label + " still waits"}
	}
	return nil
}

// difference returns the differences of the truth, the records and the programs' states from the desired state.
func (c convergence) difference() error {
	beliefs := c.beliefs()
	c.mu.Lock()
	defer c.mu.Unlock()
	attached, staged, mounted := c.wanted()
	for at := range mounted {
		if !c.isWhole(at) && !c.foreign[at] {
			return &RuleError{Rule: "L1", Text: at.String() + " is wanted and not mapped wholly"}
		}
	}
	return cmp.Or(
		c.unready(beliefs),
		c.misplaced("attached", c.attached, attached),
		c.misplaced("staged", c.staged, staged),
		c.misplaced("set up", c.mounted, mounted),
		c.outdated(mounted),
		c.tooSmall(mounted),
		c.stillRunning(),
		c.leftOnRecord(attached, staged, mounted),
	)
}

// unready returns a pod that is wanted and not ready.
func (c convergence) unready(beliefs map[string]Belief) error {
	for _, pod := range c.config.Pods {
		if c.desired[pod.Name] && !beliefs[pod.Node].Ready[pod.Name] {
			return &RuleError{Rule: "L1", Text: pod.Name + " is wanted and not ready"}
		}
	}
	return nil
}

// misplaced returns an effect that is missing, or one that should not exist.
func (c convergence) misplaced(what string, is, shouldBe map[At]bool) error {
	for _, at := range sorted(shouldBe) {
		// A volume that another program unmounted is staged again for the next pod; the pods that have it keep it.
		if !is[at] && !c.foreign[at] {
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

// outdated returns a set-up that began before the last update of its pod, and that should have been refreshed.
func (c convergence) outdated(mounted map[At]bool) error {
	for _, at := range sorted(mounted) {
		if c.volumes[at.Volume].Remountable && c.refreshed[at] != c.updates[at.Pod] {
			return &RuleError{Rule: "L1", Text: at.String() + " was not set up again after its pod was updated"}
		}
	}
	return nil
}

// stillRunning returns a node on which operations run.
func (c convergence) stillRunning() error {
	for _, node := range c.nodes {
		if len(c.processes[node].operations.running) > 0 {
			return &RuleError{Rule: "L1", Text: "operations of " + node + " still run"}
		}
	}
	return nil
}

// wanted returns the effects that the pods need.
func (c convergence) wanted() (attached, staged, mounted map[At]bool) {
	attached, staged, mounted = map[At]bool{}, map[At]bool{}, map[At]bool{}
	for _, pod := range c.config.Pods {
		if !c.desired[pod.Name] {
			continue
		}
		for _, place := range pod.Volumes {
			name := c.storageFor(pod.Name, place)
			whole := At{Node: pod.Node, Volume: name}
			if c.volumes[name].Attachable {
				attached[whole] = true
			}
			if c.volumes[name].Stageable {
				staged[whole] = true
			}
			mounted[At{Node: pod.Node, Volume: name, Pod: pod.Name}] = true
		}
	}
	return attached, staged, mounted
}

// leftOnRecord returns unwanted records. They are allowed if the journal could not be written and the program does not
// retry that.
func (c convergence) leftOnRecord(attached, staged, mounted map[At]bool) error {
	for _, node := range c.nodes {
		if _, writesAgain := c.engines[node].(Resyncer); c.stale[node] && !writesAgain {
			continue
		}
		for _, key := range slices.SortedFunc(maps.Keys(c.records[node]), recordKey.compare) {
			r := c.records[node][key]
			whole := At{Node: cmp.Or(r.Node, node), Volume: c.inner[r.Name]}
			left := r.Attached && !attached[whole] || r.Staged != "" && !staged[whole] && !c.isMapped(whole, mounted)
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

// isMapped reports whether a block volume has pods: the record has the directory of their binds as its staging.
func (c convergence) isMapped(whole At, mounted map[At]bool) bool {
	for at := range mounted {
		if at.Node == whole.Node && at.Volume == whole.Volume && c.volumes[at.Volume].Block {
			return true
		}
	}
	return false
}

// sleep lets time pass, until all that it wakes is blocked again.
func (w *World) sleep(d time.Duration) {
	w.options.Sleep(d)
	w.options.Wait()
}

func (c convergence) callsMade() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.made
}
