package world

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/volumekit/volumekit/internal/simulation"
)

// The verbs of a world's steps. The subject of a step for one pod, node, mount or call is its name or label.
const (
	verbAdd     = "add"     // a pod is added
	verbRemove  = "remove"  // a pod is removed
	verbUpdate  = "update"  // a pod was updated
	verbKick    = "kick"    // the program on a node does its pending work
	verbRelease = "release" // a call continues, with a verdict
	verbReport  = "report"  // the status of a node lists its volumes in use
	verbVerify  = "verify"  // the program verifies its attachments
	verbCrash   = "crash"   // the program on a node is killed and started
	verbReboot  = "reboot"  // a node is restarted
	verbStop    = "stop"    // the program on a node ends; its process lives on and starts another one when possible
	verbCancel  = "cancel"  // the context of the operations of a node ends
	verbUnmount = "unmount" // another program unmounts
	verbSleep   = "sleep"   // time passes
	verbExpand  = "grow"    // the control plane expands a volume
	verbUnmake  = "unmake"  // a PersistentVolume is deleted
	verbRemake  = "remake"  // it is made again, with this storage
	verbSwap    = "swap"    // a pod names other storage for a volume of its own
)

// lost is the detail of a stop with enough time to abandon the calls that do not return.
const lost = "lost"

// weights are the probabilities of the verbs for which add offers all choices together.
var weights = map[string]int{
	verbAdd: 20, verbRemove: 5, verbUpdate: 5, verbKick: 25, verbCrash: 4, verbReboot: 1, verbCancel: 2, verbUnmount: 2, verbSleep: 3,
	verbRelease: 4, verbReport: 15, verbVerify: 3,
	verbExpand: 10, verbStop: 4, verbUnmake: 8, verbRemake: 12, verbSwap: 12,
}

// Choices implements simulation.World.
func (w *World) Choices() []simulation.Choice {
	o := offers{World: w, choices: w.choices[:0]}
	o.offerPods()
	o.offerCalls()
	for _, node := range w.nodes {
		if !w.config.Eager {
			o.offer(verbKick, node)
		}
		if w.isReported(node) {
			o.offer(verbReport, node)
		}
		if w.config.Faults.Verifies && (node == Controller || !w.config.WithController) {
			o.offer(verbVerify, node)
		}
		if w.config.Faults.Crashes {
			o.offer(verbCrash, node)
		}
		if w.mayStop(node) {
			o.offer(verbStop, node)
			o.offerAs(weights[verbStop]*cmp.Or(w.config.Often[verbStop], 1), verbStop, node, lost)
		}
		if w.config.Faults.Cancels {
			o.offer(verbCancel, node)
		}
		if w.config.Faults.Reboots && node != Controller {
			o.offer(verbReboot, node)
		}
	}
	o.offerUnmounts()
	o.offerExpansions()
	o.offerStorage()
	for _, d := range w.config.Faults.Sleeps {
		o.offer(verbSleep, d.String())
	}
	w.choices = o.choices
	return w.choices
}

// offers collects the present choices of a world.
type offers struct {
	*World
	choices []simulation.Choice
}

// isReported reports whether the driver makes a node's status list its volumes in use.
func (w *World) isReported(node string) bool {
	writer, ok := w.engines[node].(StatusWriter)
	return w.config.WithController && node != Controller && (!ok || !writer.WritesStatus())
}

func (o *offers) offer(verb, subject string) {
	o.offerAs(weights[verb]*cmp.Or(o.config.Often[verb], 1), verb, subject, "")
}

func (o *offers) offerAs(weight int, verb, subject, detail string) {
	o.choices = append(o.choices, simulation.Choice{
		Step: simulation.Step{Verb: verb, Subject: subject, Detail: detail}, Weight: weight,
	})
}

func (o *offers) offerPods() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, pod := range o.config.Pods {
		if !o.desired[pod.Name] {
			o.offer(verbAdd, pod.Name)
			continue
		}
		o.offer(verbRemove, pod.Name)
		if slices.ContainsFunc(pod.Volumes, func(v string) bool { return o.volumes[v].Remountable }) {
			o.offer(verbUpdate, pod.Name)
		}
	}
}

func (o *offers) offerUnmounts() {
	if !o.config.Faults.Foreign {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, at := range sorted(o.mounted) {
		if !o.volumes[at.Volume].Block || o.parts[at]&partBound != 0 {
			o.offer(verbUnmount, at.String())
		}
	}
	for _, at := range sorted(o.staged) {
		if o.volumes[at.Volume].Block {
			continue
		}
		o.offer(verbUnmount, at.String())
	}
}

// offerCalls offers each verdict on each call that waits.
func (o *offers) offerCalls() {
	for _, call := range o.calls.Waiting() {
		weight, often := weights[verbRelease], cmp.Or(o.config.Faults.Often, 14)
		if call.Name == o.config.Faults.Slow {
			weight, often = 1, 2
		}
		o.offerAs(often*weight, verbRelease, call.Label, OK)
		for _, verdict := range o.verdictsOn(call) {
			o.offerAs(weight, verbRelease, call.Label, verdict)
		}
	}
}

// verdictsOn returns the verdicts that a call may get besides OK.
func (o *offers) verdictsOn(call simulation.Call) []string {
	faults := o.config.Faults
	switch call.Name {
	case "WriteStatus", "Pause":
		return nil
	case "Intend", "Conclude", "Record":
		return onlyIf(faults.Journal, Final, failWritten)
	case "WriteInUse":
		return onlyIf(faults.Status, Final, failWritten)
	case "SeeStatus":
		return onlyIf(faults.Status, Final)
	}
	var verdicts []string
	if call.Name == "NodeExpand" && len(faults.Verdicts) > 0 {
		verdicts = []string{refused, infeasible}
	}
	for _, verdict := range faults.Verdicts {
		if o.mayEnd(call, verdict) {
			verdicts = append(verdicts, verdict)
		}
	}
	return verdicts
}

func onlyIf(may bool, verdicts ...string) []string { //nolint:revive // The name says its use.
	if !may {
		return nil
	}
	return verdicts
}

// mayEnd reports whether a plugin that keeps the contract, or one that breaks it by plan, may end a call so.
func (o *offers) mayEnd(call simulation.Call, verdict string) bool {
	if verdict == Half && call.Name != "MapDevice" && call.Name != "UnmapDevice" {
		return false
	}
	switch call.Name {
	case "Half":
		return false
	case "MapDevice", "UnmapDevice":
		return verdict != Lie && verdict != NilError
	case "SetUpDevice", "MapPodDevice":
		return !slices.Contains([]string{Lie, FinalAfter, TransientAfter}, verdict) && (call.Name == "MapPodDevice" || verdict != Final || !o.isStagedForPods(atOf(call)))
	case "TearDownDevice", "UnmapPodDevice", "RemoveMapPath":
		return verdict != Lie
	case "Answer":
		return verdict == Unsure || verdict == Panic || verdict == Goexit || verdict == Cancelled
	case "VolumesAreAttached":
		return verdict == Final || verdict == Unsure || verdict == Panic || verdict == Goexit
	case "WaitForAttach":
		return !slices.Contains([]string{FinalAfter, TransientAfter, UnsureAfter, PanicAfter, GoexitAfter, CancelledAfter, LoseAnswer, NilError, Lie}, verdict)
	case "SetUp":
		if verdict == Lie && o.isMounted(atOf(call)) {
			return false // No check can detect a missing refresh.
		}
		return o.config.Faults.BreaksContract || verdict != Lie && verdict != FinalAfter && verdict != TransientAfter
	case "MountDevice":
		if verdict == Final {
			return !o.isStagedForPods(atOf(call))
		}
		return o.config.Faults.BreaksContract || verdict != Lie && verdict != FinalAfter && verdict != TransientAfter
	case "TearDown", "UnmountDevice":
		return o.config.Faults.BreaksContract || verdict != Lie
	}
	return verdict != Lie
}

// isStagedForPods reports whether the volume of a call is staged already and pods have it. A plugin then does not clean
// up, and so cannot report that nothing is there.
func (o *offers) isStagedForPods(at At) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.hasPods(at)
}

func (o *offers) isMounted(at At) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.mounted[at]
}

// atOf returns the place of a waiting call.
func atOf(call simulation.Call) At {
	label := strings.TrimPrefix(strings.TrimPrefix(call.Label, "Answer:"), "Half:")
	return parseAt(label[strings.IndexByte(label, ':')+1:])
}

// parseAt parses the text of At.String.
func parseAt(text string) At {
	text, _, _ = strings.Cut(text, "~")
	parts := append(strings.Split(text, ":"), "", "", "")
	return At{Node: parts[0], Volume: parts[1], Pod: parts[2]}
}

// Do implements simulation.World.
func (w *World) Do(step simulation.Step) bool {
	w.trace.Step(time.Since(w.began).String() + " " + step.String())
	if !w.do(step) {
		return false
	}
	w.options.Wait()
	if w.config.Eager && step.Verb != verbKick {
		w.kickAll()
	}
	return true
}

func (w *World) do(step simulation.Step) bool {
	switch step.Verb {
	case verbAdd, verbRemove:
		return w.setWanted(step.Subject, step.Verb == verbAdd)
	case verbRelease:
		return w.calls.Release(step.Subject, step.Detail)
	case verbUnmount:
		return w.unmount(parseAt(step.Subject))
	case verbUpdate:
		return w.updatePod(step.Subject)
	case verbExpand:
		return w.expand(step.Subject)
	case verbUnmake:
		return w.unmake(step.Subject)
	case verbRemake:
		return w.remake(step.Subject, step.Detail)
	case verbSwap:
		return w.swap(step.Subject, step.Detail)
	case verbSleep:
		d, err := time.ParseDuration(step.Subject)
		if err == nil {
			w.options.Sleep(d)
		}
		return err == nil
	}
	return w.doNode(step)
}

// doNode does the steps of a node.
func (w *World) doNode(step simulation.Step) bool {
	node := step.Subject
	if w.engines[node] == nil {
		return false
	}
	switch step.Verb {
	case verbKick:
		w.engines[node].Kick()
	case verbReport:
		w.report(node)
	case verbVerify:
		w.engines[node].Verify()
	case verbCancel:
		w.cancel(node)
	case verbStop:
		return w.stopProgram(node, step.Detail)
	case verbCrash:
		w.kill(node)
		return w.start(node) == nil
	case verbReboot:
		w.kill(node)
		w.change(func() {
			w.forgetMounts(node)
			w.boots[node]++
		})
		return w.start(node) == nil
	default:
		return false
	}
	return true
}

// setWanted adds or removes a pod. It returns false if nothing changes.
func (w *World) setWanted(name string, wanted bool) bool { //nolint:revive // It handles two verbs.
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.pods[name] == nil || w.desired[name] == wanted {
		return false
	}
	w.desired[name] = wanted
	if !wanted {
		for at := range w.used {
			if at.Pod == name {
				delete(w.used, at)
			}
		}
	}
	return true
}

func (w *World) updatePod(name string) bool {
	for _, pod := range w.config.Pods {
		if pod.Name == name && w.engines[pod.Node] != nil {
			w.change(func() {
				w.updates[name]++
				w.pods[name] = w.podObject(pod)
			})
			w.engines[pod.Node].PodUpdated(name)
			return true
		}
	}
	return false
}

// unmount is an unmount by another program. The mount watch reports it to the node's program at once.
func (w *World) unmount(at At) bool {
	w.mu.Lock()
	truth := w.mounted
	if at.Pod == "" {
		truth = w.staged
	}
	there := truth[at]
	switch {
	case !there:
	case w.volumes[at.Volume].Block:
		w.take(at, partBound)
	default:
		delete(truth, at)
	}
	if there {
		delete(w.used, at)
		w.foreign[at] = true
	}
	w.mu.Unlock()
	if there {
		w.engines[at.Node].MountLost(at.Volume, at.Pod)
	}
	return there
}

// forgetMounts is the effect of a reboot. The caller holds the lock.
func (w *World) forgetMounts(node string) {
	for at := range w.parts {
		if at.Node == node {
			delete(w.parts, at)
		}
	}
	for _, truth := range []map[At]bool{w.mounted, w.staged, w.used, w.foreign} {
		for at := range truth {
			if at.Node == node {
				delete(truth, at)
			}
		}
	}
}

// cancel ends the context of the running operations.
func (w *World) cancel(node string) {
	p := w.processes[node]
	w.mu.Lock()
	old := p.cancel
	p.renew(w.options.Context)
	w.mu.Unlock()
	old()
}

func (w *World) kickAll() {
	for _, node := range w.nodes {
		w.engines[node].Kick()
		w.options.Wait()
	}
}

// reportAll makes the status of all nodes list their volumes in use. Without a controller nothing reads it.
func (w *World) reportAll() {
	if !w.config.WithController {
		return
	}
	for _, node := range w.nodes {
		if w.isReported(node) {
			w.report(node)
		}
	}
}

// report makes the status of a node list its volumes in use.
func (w *World) report(node string) {
	names := w.engines[node].InUse()
	w.change(func() { w.inUse[node] = names })
	w.engines[node].ReportedInUse(names)
}
