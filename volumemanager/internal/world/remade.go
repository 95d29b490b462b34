package world

import (
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/internal/simulation"
	"github.com/volumekit/volumekit/volume"
)

// This file holds volumes that are storage of one kind today and of another tomorrow. A PersistentVolume is deleted and made again
// with another handle, or a pod names other storage for a volume of its own. The plugin computes the path in a pod from the name of
// the volume, and the unique name from the storage: a pod has one path for both.

// other ends the name of the other storage of a volume. storageKey is the attribute by which a pod names the storage.
const other, storageKey = "b", "storage"

// remade is which storage the volumes are now, and which storage pods ask for. The world's lock guards it.
type remade struct {
	// current has the storage of each PersistentVolume that may be made again; none while it is deleted.
	current map[string]string
	// named has the storage that each pod names for its own volumes. asked has the storage that each pod asks for: what it named,
	// or what its PersistentVolume was when the program first knew both. awaits holds the volumes for which it waits for that.
	named, asked map[podVolume]string
	awaits       map[podVolume]bool
	// dropped holds the set-ups of storage that pods do not ask for any more. It holds them until the next mount begins there: they
	// may be torn down also if the pod asks for that storage again.
	dropped map[At]bool
}

// podVolume is a volume as a pod's spec names it.
type podVolume struct{ pod, place string }

func newRemade(config Config) remade {
	r := remade{current: map[string]string{}, named: map[podVolume]string{}, asked: map[podVolume]string{}, awaits: map[podVolume]bool{}, dropped: map[At]bool{}}
	for _, v := range config.Volumes {
		if v.Remade {
			r.current[v.Name] = v.Name
		}
	}
	return r
}

// storageOf returns the storage of a spec.
func storageOf(spec *volume.Spec) string {
	switch {
	case spec.PersistentVolume != nil && spec.PersistentVolume.Spec.CSI != nil:
		return spec.PersistentVolume.Spec.CSI.VolumeHandle
	case spec.Volume != nil && spec.Volume.CSI != nil:
		return spec.Volume.CSI.VolumeAttributes[storageKey]
	}
	return spec.Name()
}

// Storages returns the names of all storage: one for each volume, and another one for each that may change.
func (c *configuration) Storages() []string { return c.storages }

func (c *configuration) storagesOf(place string) []string {
	if v := c.volumes[place]; v.Remade || v.Inline {
		return []string{place, place + other}
	}
	return []string{place}
}

// sourceFor returns the source of a volume in a pod's spec. The lock is held, or the world is being made.
func (w *World) sourceFor(pod, place string) v1.VolumeSource {
	if !w.volumes[place].Inline {
		return v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: place}}
	}
	key := podVolume{pod, place}
	if w.named[key] == "" {
		w.named[key] = place
	}
	return v1.VolumeSource{CSI: &v1.CSIVolumeSource{Driver: PluginName, VolumeAttributes: map[string]string{storageKey: w.named[key]}}}
}

// Asks says that the program is told of a pod: it asks for the storage that its volumes are now. A pod that asks for a
// PersistentVolume asks for what that was first, as long as the pod is there.
func (p *Process) Asks(pod string) {
	w := p.world
	w.change(func() {
		for _, of := range p.config.Pods {
			if of.Name != pod {
				continue
			}
			for _, place := range of.Volumes {
				key := podVolume{pod, place}
				before := w.asked[key]
				if w.ask(key); before != "" && w.asked[key] != before {
					w.dropped[At{Node: p.node, Volume: before, Pod: pod}] = true
				}
			}
		}
	})
}

// ask notes which storage a pod asks for. The lock is held.
func (w *World) ask(key podVolume) {
	switch v := w.volumes[key.place]; {
	case v.Inline:
		w.asked[key] = w.named[key]
	case v.Remade && w.asked[key] == "":
		w.asked[key], w.awaits[key] = w.current[key.place], w.current[key.place] == ""
	}
}

// forgetStorage forgets what a pod has asked for: it is gone, or the program begins anew. The lock is held.
func (w *World) forgetStorage(pod string) {
	for place := range w.places {
		delete(w.asked, podVolume{pod, place})
		delete(w.awaits, podVolume{pod, place})
	}
}

// storageFor returns the storage that a pod asks for; "" while it waits for a PersistentVolume. Before the program knows the pod, it
// is what the pod would ask for. The lock is held.
func (w *World) storageFor(pod, place string) string {
	key := podVolume{pod, place}
	switch v := w.volumes[place]; {
	case w.asked[key] != "":
		return w.asked[key]
	case v.Remade:
		return w.current[place]
	case v.Inline:
		return w.named[key]
	}
	return place
}

// uses reports whether a pod asks for storage. The lock is held.
func (w *World) uses(pod Pod, storage string) bool {
	place := w.places[storage]
	return slices.Contains(pod.Volumes, place) && w.storageFor(pod.Name, place) == storage
}

// wantsOther reports whether the pod of a set-up is known to ask for other storage, or has done so since it was set up. The lock is
// held.
func (w *World) wantsOther(at At) bool {
	asked := w.asked[podVolume{at.Pod, w.places[at.Volume]}]
	return w.dropped[at] || asked != "" && asked != at.Volume
}

// otherAt returns what is set up of other storage at the path of a set-up. The lock is held.
func (w *World) otherAt(at At) (there At, taken bool) {
	for _, storage := range w.storagesOf(w.places[at.Volume]) {
		there = At{Node: at.Node, Volume: storage, Pod: at.Pod}
		if storage != at.Volume && w.mounted[there] {
			return there, true
		}
	}
	return At{}, false
}

// setUpAt returns what is set up at a path, or would be. The lock is held.
func (w *World) setUpAt(at At) At {
	if there, taken := w.otherAt(at); taken {
		return there
	}
	return at
}

// unmountAll is the effect of a teardown: the plugin knows the path, and not the storage. The lock is held.
func (w *World) unmountAll(at At) {
	at = w.setUpAt(at)
	delete(w.mounted, at)
	delete(w.foreign, at)
}

// tornDown returns the set-up that a call tears down. The plugin knows the path, and the operation knows the storage.
func (p *Process) tornDown(at At) At {
	p.world.mu.Lock()
	defer p.world.mu.Unlock()
	for _, storage := range p.storagesOf(at.Volume) {
		of := At{Node: at.Node, Volume: storage, Pod: at.Pod}
		if p.operations.runs(of, unmounts...) {
			return of
		}
	}
	return p.world.setUpAt(at)
}

// offerStorage offers to change the storage of each volume whose storage may change.
func (o *offers) offerStorage() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, v := range o.config.Volumes {
		switch {
		case v.Remade && o.current[v.Name] != "":
			o.offer(verbUnmake, v.Name)
		case v.Remade:
			for _, storage := range o.storagesOf(v.Name) {
				o.offerAs(weights[verbRemake], verbRemake, v.Name, storage)
			}
		}
	}
	for _, pod := range o.config.Pods {
		for _, place := range pod.Volumes {
			if o.volumes[place].Inline {
				o.offerAs(weights[verbSwap], verbSwap, pod.Name, place)
			}
		}
	}
}

// unmake deletes a PersistentVolume. Pods keep what they have of it.
func (w *World) unmake(place string) bool {
	remaker, ok := w.engines[w.nodes[0]].(Remaker)
	if !ok || w.current[place] == "" {
		return false
	}
	w.change(func() { w.current[place] = "" })
	remaker.DeleteVolume(place)
	return true
}

// remake makes a PersistentVolume again. Pods that wait for it ask for what it is now.
func (w *World) remake(place, storage string) bool {
	remaker, ok := w.engines[w.nodes[0]].(Remaker)
	if !ok || w.current[place] != "" || !slices.Contains(w.storagesOf(place), storage) {
		return false
	}
	w.change(func() {
		w.current[place] = storage
		for _, pod := range w.config.Pods {
			if key := (podVolume{pod.Name, place}); w.awaits[key] {
				delete(w.awaits, key)
				w.ask(key)
			}
		}
	})
	remaker.CreateVolume(place, storage)
	return true
}

// swap has a pod name the other storage for a volume of its own.
func (w *World) swap(pod, place string) bool {
	if w.pods[pod] == nil || !w.volumes[place].Inline {
		return false
	}
	w.change(func() {
		key := podVolume{pod, place}
		w.named[key] = otherOf(w.storagesOf(place), w.named[key])
	})
	return w.updatePod(pod)
}

// makeMissing makes the PersistentVolumes again that are deleted.
func (c convergence) makeMissing() {
	for _, v := range c.config.Volumes {
		if v.Remade && c.current[v.Name] == "" {
			storages := c.storagesOf(v.Name)
			step := simulation.Step{Verb: verbRemake, Subject: v.Name, Detail: storages[len(storages)-1]}
			c.trace.Step(step.String())
			c.remake(step.Subject, step.Detail)
			c.options.Wait()
		}
	}
}

// changeBroken lets the broken pod have its volumes, and then ask for other storage. What it has had cannot be torn down for some
// time.
func (c convergence) changeBroken() error {
	i := slices.IndexFunc(c.config.Pods, func(pod Pod) bool { return pod.Name == c.config.Broken && c.changes(pod) })
	if i < 0 {
		return nil
	}
	if err := c.runUntilIdle(always); err != nil {
		return err
	}
	pod := c.config.Pods[i]
	c.trace.Step("other storage for " + pod.Name)
	for _, place := range pod.Volumes {
		switch v := c.volumes[place]; {
		case v.Inline:
			c.swap(pod.Name, place)
		case v.Remade:
			next := otherOf(c.storagesOf(place), c.current[place])
			c.unmake(place)
			c.remake(place, next)
		}
		c.options.Wait()
	}
	for _, wanted := range []bool{false, true} {
		c.setWanted(pod.Name, wanted)
		c.kickAll()
	}
	return nil
}

// changes reports whether a pod is wanted and the storage of one of its volumes may change.
func (c convergence) changes(pod Pod) bool {
	return c.desired[pod.Name] && slices.ContainsFunc(pod.Volumes, func(place string) bool { return c.volumes[place].Inline || c.volumes[place].Remade })
}

// otherOf returns the other one of two.
func otherOf(storages []string, storage string) string {
	return storages[1-slices.Index(storages, storage)]
}

// wantsOtherNow is wantsOther for the driver.
func (c convergence) wantsOtherNow(at At) (wants bool) {
	c.change(func() { wants = c.wantsOther(at) })
	return wants
}

// Pause waits until a program may go on at a point at which others may overtake it.
func (p *Process) Pause(at string) { p.park("Pause", "Pause:"+p.node+":"+at) }
