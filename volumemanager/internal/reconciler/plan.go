package reconciler

import (
	"github.com/volumekit/volumekit/cache"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

// verb is the kind of an action. The verbs are in the order of a volume's life.
type verb uint8

const (
	verbUnmount       verb = iota // tear the volume down for a pod, or unmap it
	verbAttach                    // attach it to this node
	verbVerify                    // check whether a controller has attached it to this node
	verbMount                     // stage it and set it up for a pod, or map it
	verbRemount                   // set it up, or map it, again for a pod that uses it
	verbExpand                    // expand it on this node while a pod uses it
	verbUnmountDevice             // unstage it, or undo the preparation of its mapping
	verbDetach                    // detach it from this node
	verbForget                    // no trace of it is left: drop it from the actual state
)

// String returns the verb's name in the planner's cases.
func (v verb) String() string {
	return [...]string{"unmount", "attach", "verify-attached", "mount", "remount", "expand", "unmount-device", "detach", "forget"}[v]
}

// isTeardown reports whether an action of this verb only undoes something.
func (v verb) isTeardown() bool {
	return v == verbUnmount || v == verbUnmountDevice || v == verbDetach || v == verbForget
}

// action is one step for a volume.
type action struct {
	verb verb
	// pod is the pod of the action, if it is for one pod.
	pod volume.UniquePodName
}

// volumeView is the planner's input for one volume: desired, actual and pending.
type volumeView struct {
	// attachable says that the volume must be attached before it is staged or set up.
	attachable bool
	// byController says that a controller, and not this node, attaches and detaches the volume.
	byController bool
	// known says that the volume is in the actual state.
	known bool
	// hasOtherPods says that the volume is, or may be, set up for pods that are not in pods.
	hasOtherPods bool
	// adopted says that the volume was found after a restart, and that not every pod has been added since. It is then
	// unknown whether a pod needs it.
	adopted bool
	// pending says that an operation on the volume as a whole is running.
	pending bool
	// attached is what is known of the attachment to this node: not attached, too, if the volume is never attached.
	attached cache.AttachState
	device   operationexecutor.DeviceMountState
	// pods are the pods that need the volume, or for which it may be set up, in the order of their names.
	pods []podView
}

// podView is the planner's input for one volume and one pod.
type podView struct {
	name volume.UniquePodName
	// wanted says that the pod uses the volume.
	wanted bool
	// mayUse says that it is not known whether the pod uses the volume: some of its claims were never resolved, or the
	// pod itself was not added yet.
	mayUse bool
	// waits says that the pod needs the volume in another form than it has here: as a device and not as a filesystem,
	// or mounted with another SELinux context. The pod gets it after all others have released it and it was unstaged.
	waits bool
	// stale says that the set-up, if there is one, is that of an earlier pod with the same UID: it is torn down before the
	// volume is set up for this one.
	stale bool
	// remount says that the set-up must be refreshed.
	remount bool
	// expand says that the volume is smaller here than the size that the pod needs.
	expand bool
	// pending says that an operation on the volume for this pod is running.
	pending bool
	state   operationexecutor.VolumeMountState
}

// plan adds the actions that are due to actions, in order. It is a pure function: the cases under testdata/plan cover
// every decision. An action that must wait for another one is not added; it is planned when that one has ended.
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

// tearDowns tears the volume down for each pod that does not use it, or that uses it as a new pod. Uncertain counts as
// set up.
func (v *volumeView) tearDowns(actions []action) []action {
	for _, p := range v.pods {
		used := (p.wanted || p.mayUse) && !p.stale
		if p.state != operationexecutor.VolumeNotMounted && !used && !p.pending {
			actions = append(actions, action{verb: verbUnmount, pod: p.name})
		}
	}
	return actions
}

// setUps attaches the volume, or sets an attached volume up for each pod that uses it. Uncertain counts as not set up,
// and an uncertain attachment as none. The expansion of a set-up volume comes last. The actions are added to actions.
func (v *volumeView) setUps(actions []action) []action {
	switch {
	case v.attachable && v.attached != cache.Attached && v.byController:
		return append(actions, action{verb: verbVerify})
	case v.attachable && v.attached != cache.Attached:
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

// expansion expands the volume for the first pod that uses it and may write to it. That expands it for all pods.
func (v *volumeView) expansion(actions []action) []action {
	for _, p := range v.pods {
		if p.wanted && !p.waits && p.expand && !p.pending && !p.stale && p.state == operationexecutor.VolumeMounted {
			return append(actions, action{verb: verbExpand, pod: p.name})
		}
	}
	return actions
}

// release unstages and then detaches a volume that no pod uses in its present form. A controller's attachment is the
// exception: the controller detaches when the node no longer reports the volume as in use.
func (v *volumeView) release(actions []action) []action {
	switch {
	case v.device != operationexecutor.DeviceNotMounted:
		return append(actions, action{verb: verbUnmountDevice})
	case v.attachable && v.attached != cache.NotAttached && !v.byController:
		return append(actions, action{verb: verbDetach})
	case v.known:
		return append(actions, action{verb: verbForget})
	}
	return actions
}

// isWanted reports whether any pod needs the volume in its present form.
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
	if v.hasOtherPods {
		return true
	}
	for _, p := range v.pods {
		if p.pending || p.state != operationexecutor.VolumeNotMounted {
			return true
		}
	}
	return false
}
