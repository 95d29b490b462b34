package world

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/internal/simulation"
)

// Controller is the name of the node on which the controller runs, in a world that has one.
const Controller = "controller"

// Config says what there is in a world.
type Config struct {
	// Nodes are the nodes, by name. Without a controller there is one, which attaches its volumes itself.
	Nodes []string
	// Volumes are the volumes.
	Volumes []Volume
	// Pods are the pods that may come.
	Pods []Pod
	// WithController says that a controller attaches and detaches.
	WithController bool
	// Sick is the volume whose calls hang when faults have stopped, until the pods that do not need it are ready. Empty:
	// none.
	Sick string
	// Broken is the pod whose set-ups fail when faults have stopped, until the other pods are ready. Empty: none.
	Broken string
	// Eager says that the programs are kicked after each step, so that a kick is no step of its own.
	Eager bool
	// Often says, by verb, how many times as often as usual a step is taken; a verb that is not there counts once.
	Often map[string]int
	// Faults says what may go wrong.
	Faults Faults
}

// Volume is one volume.
type Volume struct {
	// Name is its name.
	Name string
	// Attachable says that it must be attached.
	Attachable bool
	// Stageable says that it must be staged.
	Stageable bool
	// Block says that it is a device that is mapped for pods; it must be attached or staged.
	Block bool
	// Expands says that the control plane may expand it, and that its node must then expand it too.
	Expands bool
	// Remountable says that it is set up again at each update of a pod.
	Remountable bool
	// Reusable says that a set-up changes nothing where one has succeeded before; for one that is neither attached, staged nor
	// Remountable.
	Reusable bool
	// Remade says that its PersistentVolume may be deleted and made again with other storage; for one that pods share, in a world
	// without a controller.
	Remade bool
	// Inline says that pods name its storage themselves, and other storage at an update; for one that pods share, with the mode
	// ReadWriteMany, in a world without a controller.
	Inline bool
	// Mode is ReadWriteOnce, ReadWriteMany or ReadWriteOncePod.
	Mode string
}

// shared says that the volume has one name for all pods.
func (v Volume) shared() bool { return v.Attachable || v.Stageable }

// excludes reports whether only one of two pods can have the volume.
func (v Volume) excludes(a, b Pod) bool {
	if a.Node == b.Node {
		return v.shared() && v.Mode == "ReadWriteOncePod"
	}
	return v.Attachable && v.Mode != "ReadWriteMany"
}

// Pod is one pod.
type Pod struct {
	// Name is its name, and its UID.
	Name string
	// Node is where it runs.
	Node string
	// Volumes are those that it uses.
	Volumes []string
}

// Faults says what may go wrong. The zero value: nothing.
type Faults struct {
	// Verdicts are the verdicts on calls of the plugin beside OK; nil means none.
	Verdicts []string
	// Often is how often a call succeeds for each time that it ends with one of them; zero means 14.
	Often int
	// Slow is the call that takes long, so that much happens meanwhile; empty: none.
	Slow string
	// Journal says that writing a record may fail.
	Journal bool
	// Crashes says that processes may be killed, Reboots that nodes may be rebooted.
	Crashes, Reboots bool
	// Stops says that programs may end while their processes live on, and begin again in them.
	Stops bool
	// Cancels says that the context of operations may end.
	Cancels bool
	// Status says that writing the status of a node may fail, and that a program may lose sight of it.
	Status bool
	// Verifies says that the programs ask the storage, now and then, what is attached.
	Verifies bool
	// Foreign says that another process may unmount.
	Foreign bool
	// Quiet says that the journal and the wait for a device do not park, so that nothing of that fails.
	Quiet bool
	// BreaksContract says that the plugin may report what is false.
	BreaksContract bool
	// Sleeps are how long the clock may be advanced at a time.
	Sleeps []time.Duration
}

// Options is what a world needs of the test that it is part of.
type Options struct {
	// Context is the one of the test.
	Context context.Context //nolint:containedctx // It is given to each process, which lives as long as the world.
	// Wait returns when every goroutine is blocked: synctest.Wait.
	Wait func()
	// Sleep advances the clock: time.Sleep.
	Sleep func(time.Duration)
	// Start starts the program under test in a process.
	Start func(p *Process) Engine
	// Trace gets what happens.
	Trace *simulation.Trace
}

// Engine is a program under test, on one node or on the controller.
type Engine interface {
	// Kick does what there is to do now, and returns at once.
	Kick()
	// Belief returns what is believed of this node; of all nodes by the controller.
	Belief() Belief
	// InUse returns the volumes that the node's status has to list as in use.
	InUse() []v1.UniqueVolumeName
	// ReportedInUse says that the node's status lists these.
	ReportedInUse(names []v1.UniqueVolumeName)
	// Verify asks the storage what is attached.
	Verify()
	// PodUpdated says that a pod's volumes have to be set up again.
	PodUpdated(pod string)
	// MountLost says that another process has unmounted what was set up for a pod, or, with no pod, what was staged.
	MountLost(volume, pod string)
	// Stop waits until nothing runs any more.
	Stop(ctx context.Context) error
}

// Restarter is an [Engine] whose program can end and begin again in the same process, as often as it is kicked, beside the calls
// that have not returned.
type Restarter interface {
	// EndRun has the program end, and returns at once. Kicks begin another one when that is possible.
	EndRun()
	// Life says what has become of it.
	Life() Life
}

// Life is what has become of a program that may have been ended.
type Life uint8

// The lives of a program.
const (
	Running Life = iota // it was not ended, or another one has begun since
	Ending              // it has not returned
	Ended               // it has returned, and no other one could begin yet
)

// Resyncer is an [Engine] that makes good by itself, from time to time, what could not be written. When faults have stopped,
// nothing may be left on its records then.
type Resyncer interface {
	// Resync does so, and returns at once.
	Resync()
}

// StatusWriter is an [Engine] of a node that has the node's status list what it uses by itself, if the method says so: see
// [Process.WriteInUse]. For any other one the driver does, when it likes.
type StatusWriter interface {
	// WritesStatus says so.
	WritesStatus() bool
}

// Expander is an [Engine] in whose world the control plane expands volumes.
type Expander interface {
	// Expand writes a larger size into a volume and its claim, as the control plane does. The node must then expand the volume.
	Expand(volume string, size int)
}

// Remaker is an [Engine] in whose world PersistentVolumes are deleted and made again.
type Remaker interface {
	// DeleteVolume deletes a PersistentVolume. CreateVolume makes it again, with this storage.
	DeleteVolume(volume string)
	CreateVolume(volume, storage string)
}

// At is an effect: a volume that is attached to a node or staged there, or, with a pod, set up for it.
type At struct {
	// Node, Volume and Pod say where. A volume with other storage is another one: see [Process.Storages].
	Node, Volume, Pod string
}

// String returns the parts that are not empty.
func (a At) String() string {
	s := a.Node + ":" + a.Volume
	if a.Pod != "" {
		s += ":" + a.Pod
	}
	return s
}

// State is what is believed of an effect.
type State uint8

// The states. What is not in a map is absent.
const (
	Absent State = iota
	Uncertain
	Present
)

// String returns the state in lower case.
func (s State) String() string { return [...]string{"absent", "uncertain", "present"}[s] }

// Belief is what a program believes. It may be used again for the next one.
type Belief struct {
	// Attached, Staged and Mounted are the effects that it knows.
	Attached, Staged, Mounted map[At]State
	// Ready are the pods that may use their volumes.
	Ready map[string]bool
}

// NewBelief returns the belief that nothing is there.
func NewBelief() Belief {
	return Belief{Attached: map[At]State{}, Staged: map[At]State{}, Mounted: map[At]State{}, Ready: map[string]bool{}}
}

// Verdicts on calls of the plugin. All but OK, and those that say so, are errors.
const (
	OK             = "ok"              // the effect, and success
	Transient      = "transient"       // nothing was begun
	TransientAfter = "transient-after" // the effect, and yet an error that says nothing was begun
	Final          = "final"           // there is no effect; one that was there is cleaned up
	FinalAfter     = "final-after"     // the effect, and yet an error that says there is none
	Unsure         = "uncertain"       // no effect, but the plugin does not know
	UnsureAfter    = "uncertain-after" // the effect, but the plugin does not know
	Panic          = "panic"           // before the effect
	PanicAfter     = "panic-after"     // after it
	Goexit         = "goexit"          // runtime.Goexit before the effect
	GoexitAfter    = "goexit-after"    // after it
	Cancelled      = "cancelled"       // waits for the end of its context, without effect
	CancelledAfter = "cancelled-after" // waits for the end of its context, with the effect
	LoseAnswer     = "lose-answer"     // the effect, and no answer until a later step
	NilError       = "nil-error"       // the effect, and a nil pointer as the error
	Lie            = "lie"             // success without the effect
	Half           = "half"            // a part of the effect, and an error in a later step
)

// Verdicts on calls that let a volume grow.
const (
	refused    = "refused"    // not while it is used
	infeasible = "infeasible" // never
)

// Verdict on calls of the journal beside OK and [Final], which does not write.
const failWritten = "fail-written" // written, and yet an error

// killed is the verdict on all calls of a process that was killed: no effect.
const killed = "killed"
