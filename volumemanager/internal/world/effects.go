package world

import (
	"fmt"

	"github.com/volumekit/volumekit/volume"
)

// This file holds what happens when a call of the plugin begins, has its effect, and returns, and the rules of these
// moments.

// beginCall enters a call that begins, and reports false when its process was killed.
func (w *World) beginCall(f *pluginCall) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if f.process.dead {
		return false
	}
	w.made++
	w.note("call %s", f.label)
	for other := range w.pluginCalls {
		if other.excludes(f) {
			w.broken("S1", "%s begins while %s has not returned", f.label, other.label)
		}
	}
	if !w.onRecord(f) {
		w.broken("S4", "%s begins and is not on record", f.label)
	}
	w.pluginCalls[f] = true
	return true
}

// endCall takes a call out that returns.
func (w *World) endCall(f *pluginCall) {
	w.change(func() { delete(w.pluginCalls, f) })
}

// excludes reports whether two calls must not run together.
func (f *pluginCall) excludes(other *pluginCall) bool {
	switch {
	case f.process != other.process:
		return false
	case f.at.Volume != other.at.Volume:
		return f.at.Pod != "" && f.at.Pod == other.at.Pod && f.process.places[f.at.Volume] == f.process.places[other.at.Volume]
	case !f.process.world.volumes[f.at.Volume].shared():
		return f.at.Pod == other.at.Pod
	case deviceCalls[f.name] || deviceCalls[other.name]:
		many := f.process.world.volumes[f.at.Volume].Mode == "ReadWriteMany"
		return !many || f.at.Node == other.at.Node
	}
	return f.at.Pod == other.at.Pod
}

// onRecord reports whether the effect of a call is on record. The lock is held.
func (w *World) onRecord(f *pluginCall) bool {
	r := w.recordOf(f.at, f.name == "Attach" || f.name == "Detach")
	switch f.name {
	case "WaitForAttach", "NodeExpand":
		return true
	case "Attach", "Detach":
		return r != nil && r.Attached
	case "MountDevice", "UnmountDevice", "SetUpDevice", "TearDownDevice", "RemoveMapPath":
		return r != nil && r.Staged != ""
	}
	return r != nil && r.Pods[w.pods[f.at.Pod].UID]
}

// apply makes the effect of a call, if the storage and the kernel allow it.
func (w *World) apply(f *pluginCall, effect func()) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if f.process.dead {
		return errKilled
	}
	if err := w.refuses(f); err != nil {
		return volume.Transient(fmt.Errorf("%s: %w", f.label, err))
	}
	w.watch(f)
	effect()
	w.note("effect %s", f.label)
	return nil
}

// refuses returns why the storage or the kernel cannot do what is asked. The lock is held.
func (w *World) refuses(f *pluginCall) error {
	v, whole := w.volumes[f.at.Volume], At{Node: f.at.Node, Volume: f.at.Volume}
	switch f.name {
	case "WaitForAttach", "MountDevice", "SetUpDevice":
		if v.Attachable && !w.attached[whole] {
			return fmt.Errorf("there is no such device: %w", errNotThere)
		}
	case "MapDevice", "MapPodDevice":
		if v.Attachable && !w.attached[whole] || v.Stageable && !w.staged[whole] {
			return fmt.Errorf("there is no such device: %w", errNotThere)
		}
	case "NodeExpand":
		if v.Attachable && !w.attached[whole] || v.Stageable && !w.staged[whole] && !w.hasPods(whole) {
			return fmt.Errorf("it is not here: %w", errNotThere)
		}
	case "SetUp":
		if v.Stageable && !w.staged[whole] && !w.mounted[f.at] {
			return fmt.Errorf("it is not staged: %w", errNotThere)
		}
	}
	return nil
}

// watch holds the rules of the moment of an effect. The lock is held.
func (w *World) watch(f *pluginCall) {
	v, whole := w.volumes[f.at.Volume], At{Node: f.at.Node, Volume: f.at.Volume}
	switch f.name {
	case "Attach":
		for other := range w.attached {
			if other.Volume == v.Name && other.Node != f.at.Node && v.Mode != "ReadWriteMany" {
				w.broken("S8", "%s while it is attached to %s", f.label, other.Node)
			}
		}
	case "Detach":
		if w.staged[whole] || w.hasPods(whole) {
			w.broken("S3", "%s while it is staged or set up", f.label)
		}
	case "UnmountDevice", "TearDownDevice", "RemoveMapPath":
		if w.hasPods(whole) {
			w.broken("S3", "%s while it is set up", f.label)
		}
	case "SetUp", "MapDevice", "MapPodDevice":
		for other := range w.mounted {
			if other.Volume == v.Name && other.Node == f.at.Node && other.Pod != f.at.Pod && v.Mode == "ReadWriteOncePod" && v.shared() {
				w.broken("S8", "%s while pod %s has it", f.label, other.Pod)
			}
		}
	case "TearDown", "UnmapDevice":
		delete(w.used, f.at)
	}
}

// truth is what the storage and the kernels of the nodes have: what is attached, staged and set up.
type truth struct {
	attached, staged, mounted map[At]bool
	// mountIDs are the ids of the mounts that set-ups have made, also of those that are gone; mounts counts them.
	mountIDs map[At]uint64
	mounts   uint64
	// parts are those of each mapping of a block volume, which is in mounted too.
	parts map[At]part
	// foreign holds what another program has unmounted and the plugin has not been called for since.
	foreign map[At]bool
}

// hasPods reports whether a volume is set up for any pod. The lock is held.
func (t *truth) hasPods(whole At) bool {
	for at := range t.mounted {
		if at.Node == whole.Node && at.Volume == whole.Volume {
			return true
		}
	}
	return false
}

// mount mounts what a set-up makes, unless something is there. The lock is held.
func (w *World) mount(at At) {
	t := &w.truth
	if _, taken := w.otherAt(at); taken {
		return // The plugin takes it for its own.
	}
	if !t.mounted[at] {
		t.mounts++
		t.mountIDs[at] = t.mounts
	}
	t.mounted[at] = true
}

// removeMount unmounts what a set-up that failed has made. The lock is held.
func (w *World) removeMount(at At) {
	if w.mounted[at] && w.used[at] {
		w.broken("S5", "a set-up that failed unmounted %v, which its pod uses", at)
	}
	delete(w.mounted, at)
}
