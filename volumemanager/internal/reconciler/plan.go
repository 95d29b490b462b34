package reconciler

import (
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

// verb is what an action does. The order of the verbs is that in which a volume comes and goes.
type verb uint8

const (
	verbUnmount       verb = iota // take the volume from a pod: tear it down, or unmap it
	verbAttach                    // attach it to this node
	verbVerify                    // look whether a controller has attached it to this node
	verbMount                     // stage it and set it up for a pod, or map it
	verbRemount                   // set it up, or map it, again for a pod that uses it
	verbExpand                    // grow it here while a pod uses it
	verbUnmountDevice             // unstage it, or undo what was prepared to map it
	verbDetach                    // detach it from this node
	verbForget                    // nothing is left of it: drop it from the actual state
)

// String returns the verb as it stands in the planner's cases.
func (v verb) String() string {
	return [...]string{"unmount", "attach", "verify-attached", "mount", "remount", "expand", "unmount-device", "detach", "forget"}[v]
}

// takesAway reports whether an action of this verb undoes something, and brings nothing.
func (v verb) takesAway() bool {
	return v == verbUnmount || v == verbUnmountDevice || v == verbDetach || v == verbForget
}

// action is one thing to be done to a volume.
type action struct {
	verb verb
	// pod is the pod of an action that concerns one.
	pod volume.UniquePodName
}

// attachState is what is known of the volume's attachment to this node. Not attached is also the state of a volume that
// is never attached.
type attachState uint8

const (
	notAttached attachState = iota
	attachUncertain
	attached
)

// String returns the state as it stands in the planner's cases and in the status.
func (s attachState) String() string {
	return [...]string{"not attached", "attachment uncertain", "attached"}[s]
}

// volumeView is all that the planner knows of one volume: desired, actual and pending.
type volumeView struct {
	// attachable says that the volume must be attached before it is staged or set up.
	attachable bool
	// byController says that it is not this node that attaches and detaches the volume.
	byController bool
	// known says that the volume is in the actual state.
	known bool
	// othersHaveIt says that the volume is, or may be, set up for pods that are not in pods.
	othersHaveIt bool
	// adopted says that the volume was found after a restart, and not every pod has been added since. It is then unknown
	// whether a pod wants it.
	adopted bool
	// pending says that an operation on the volume as a whole is running.
	pending  bool
	attached attachState
	device   operationexecutor.DeviceMountState
	// pods are those that want the volume or that it may be set up for, in the order of their names.
	pods []podView
}

// podView is what the planner knows of one volume and one pod.
type podView struct {
	name volume.UniquePodName
	// wanted says that the pod uses the volume.
	wanted bool
	// held says that it is not known whether the pod uses the volume: some of its claims were never resolved, or the
	// pod itself was not added yet.
	held bool
	// waits says that the pod wants the volume in another way than it is here: as a device and not as a filesystem, or
	// mounted with another SELinux context. It gets it once all others have given it up and it was released.
	waits bool
	// stale says that the set-up, if there is one, is that of an earlier pod with the same UID: it is torn down before the
	// volume is set up for this one.
	stale bool
	// remount says that the set-up is to be refreshed.
	remount bool
	// grow says that the volume is smaller here than it is meant to be for the pod.
	grow bool
	// pending says that an operation on the volume for this pod is running.
	pending bool
	state   operationexecutor.VolumeMountState
}

// plan adds to actions what is to be done now, in order. It is a pure function: everything that it decides is in the cases
// under testdata/plan. What has to wait for another action is not added; it is planned when that one has ended.
func (v *volumeView) plan(actions []action) []action {
	if v.pending {
		return actions
	}
	actions = v.tearDowns(actions)
	switch {
	case v.isWanted():
		return v.setUps(actions)
	case v.isSetUp() || v.adopted:
		return actions
	default:
		return v.release(actions)
	}
}

// tearDowns takes the volume from each pod that does not use it, or that uses it anew. Uncertain counts as set up.
func (v *volumeView) tearDowns(actions []action) []action {
	for _, p := range v.pods {
		used := (p.wanted || p.held) && !p.stale
		if p.state != operationexecutor.VolumeNotMounted && !used && !p.pending {
			actions = append(actions, action{verb: verbUnmount, pod: p.name})
		}
	}
	return actions
}

// setUps attaches the volume or, when it is attached, sets it up for each pod that uses it. Uncertain counts as not set
// up, and an uncertain attachment as none. A volume that is set up as it is wanted grows last. They are added to actions.
func (v *volumeView) setUps(actions []action) []action {
	switch {
	case v.attachable && v.attached != attached && v.byController:
		return append(actions, action{verb: verbVerify})
	case v.attachable && v.attached != attached:
		return append(actions, action{verb: verbAttach})
	}
	before := len(actions)
	if actions = v.mounts(actions); len(actions) > before {
		return actions
	}
	return v.expansion(actions)
}

func (v *volumeView) mounts(actions []action) []action {
	for _, p := range v.pods {
		switch {
		case !p.wanted || p.waits || p.pending || p.stale:
		case p.state != operationexecutor.VolumeMounted:
			actions = append(actions, action{verb: verbMount, pod: p.name})
		case p.remount:
			actions = append(actions, action{verb: verbRemount, pod: p.name})
		}
	}
	return actions
}

// expansion grows the volume for the first pod that uses it and may write to it: that makes it larger for all.
func (v *volumeView) expansion(actions []action) []action {
	for _, p := range v.pods {
		if p.wanted && !p.waits && p.grow && !p.pending && !p.stale && p.state == operationexecutor.VolumeMounted {
			return append(actions, action{verb: verbExpand, pod: p.name})
		}
	}
	return actions
}

// release undoes what is left when no pod uses the volume as it is: staging first, then the attachment, unless that is a
// controller's: it detaches when it sees that the volume is not in use any more.
func (v *volumeView) release(actions []action) []action {
	switch {
	case v.device != operationexecutor.DeviceNotMounted:
		return append(actions, action{verb: verbUnmountDevice})
	case v.attachable && v.attached != notAttached && !v.byController:
		return append(actions, action{verb: verbDetach})
	case v.known:
		return append(actions, action{verb: verbForget})
	}
	return actions
}

// isWanted reports whether any pod wants the volume as it is.
func (v *volumeView) isWanted() bool {
	for _, p := range v.pods {
		if p.wanted && !p.waits {
			return true
		}
	}
	return false
}

// isSetUp reports whether the volume may be set up for any pod, or whether an operation for a pod is running that may
// set it up.
func (v *volumeView) isSetUp() bool {
	if v.othersHaveIt {
		return true
	}
	for _, p := range v.pods {
		if p.pending || p.state != operationexecutor.VolumeNotMounted {
			return true
		}
	}
	return false
}
