package volumemanager

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/cache"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/retry"
)

// podEntry is one pod that was added. It never changes: an update makes a new one.
type podEntry struct {
	pod *v1.Pod
	// volumes are those that containers use. Few pods have more than a few.
	volumes []podVolume
}

// podVolume is what one volume of a pod was resolved to, the last time that worked.
type podVolume struct {
	outer  string
	name   v1.UniqueVolumeName // empty: it never worked
	plugin string
	// readOnly says that the pod asks for read-only under this name.
	readOnly bool
	// err is why it did not work the last time; nil when it did.
	err error
}

// isComplete reports whether every volume has been resolved at least once, so that what is not wanted is known.
func (p *podEntry) isComplete() bool {
	for _, v := range p.volumes {
		if v.name == "" {
			return false
		}
	}
	return true
}

// isResolved reports whether every volume was resolved the last time.
func (p *podEntry) isResolved() bool {
	for _, v := range p.volumes {
		if v.err != nil {
			return false
		}
	}
	return true
}

// volume returns one volume of the pod; the zero value when there is none.
func (p *podEntry) volume(outer string) podVolume {
	if p == nil {
		return podVolume{}
	}
	for _, v := range p.volumes {
		if v.outer == outer {
			return v
		}
	}
	return podVolume{}
}

// uses reports whether the pod is there and uses a volume.
func (p *podEntry) uses(name v1.UniqueVolumeName) bool {
	if p == nil {
		return false
	}
	for _, v := range p.volumes {
		if v.name == name {
			return true
		}
	}
	return false
}

// namesOf returns the outer names by which the pod has a volume now: those with which it was set up are the pod's as it was then. A
// pod that is not known has those.
func (p *podEntry) namesOf(mounted *cache.MountedVolume) []string {
	if p == nil {
		return mounted.OuterVolumeSpecNames
	}
	var names []string
	for _, v := range p.volumes {
		if v.name == mounted.VolumeName {
			names = append(names, v.outer)
		}
	}
	return names
}

// without returns the volumes of the pod that another entry does not use, as far as they are resolved. One that the pod has
// under two names may be there twice.
func (p *podEntry) without(other *podEntry) []v1.UniqueVolumeName {
	if p == nil {
		return nil
	}
	var names []v1.UniqueVolumeName
	for _, v := range p.volumes {
		if v.name != "" && !other.uses(v.name) {
			names = append(names, v.name)
		}
	}
	return names
}

// AddPod says that pod is to run on this node, so that its volumes are wanted. What is used of pod is
// copied, so that the caller may change it afterwards; what containers run, probes and scheduling are not. Adding a pod again updates
// it, as UpdatePod does. After [Manager.RemovePod] the same UID is another pod: what is set up for the first one is torn down
// before anything is set up, and reported ready, for the second one. A program that may be killed in between waits for
// [Manager.WaitForUnmount] before it uses a UID again: the next program cannot tell the two pods apart.
//
// A mistake that only the caller can mend is returned, and nothing is changed then: malformed names or mounts, a volume that no
// plugin or more than one plugin serves, a block device that is mounted, a claim without a store. It matches [volume.ErrInvalid],
// [volume.ErrUnsupported], [volume.ErrNoPlugin] or [volume.ErrMultiplePlugins]. What may come right by itself is no
// error: a claim that is missing or not bound, or a store that cannot be read. The pod is looked at again when that
// changes; [Manager.PodStatus] and the error of a wait say why it is not ready. ctx bounds the reads of the store; when it
// ends before they have, nothing is changed and the error is that of ctx.
func (m *Manager) AddPod(ctx context.Context, pod *v1.Pod) error {
	if err := validatePod(pod); err != nil {
		return err
	}
	return m.change(ctx, pod, func(old *podEntry) error {
		if old != nil && podKey(old.pod) != podKey(pod) {
			return fmt.Errorf("pod %q has UID %q, which is that of pod %q: give each pod its own: %w",
				podKey(pod), pod.UID, podKey(old.pod), volume.ErrInvalid)
		}
		return nil
	})
}

// change makes the desired state what pod says, unless check refuses what the pod was before, which may be nil.
func (m *Manager) change(ctx context.Context, pod *v1.Pod, check func(old *podEntry) error) error {
	pod = copyOfPod(pod)
	defer m.growth.reading()()
	defer m.readsClaims(pod)()
	answers := m.resolver.resolve(ctx, pod)
	if ctx.Err() != nil {
		m.dirtyPods.Add(pod.UID) // which forgets what it waits for, if the pod is not known
		return fmt.Errorf("pod %q was not added: its claims were not read in time: %w", podKey(pod), context.Cause(ctx))
	}
	release, ok := m.podTurns.Take(ctx.Done(), pod.UID)
	if !ok {
		return fmt.Errorf("pod %q is being changed by another call: %w", podKey(pod), context.Cause(ctx))
	}
	defer release()
	old := m.entryOf(pod.UID)
	if err := cmp.Or(check(old), mistakes(answers), m.refuses(old, pod, answers)); err != nil {
		if old == nil {
			m.claims.drop(pod.UID)
		}
		return err
	}
	if old != nil {
		m.actual.MarkRemountRequired(volume.GetUniquePodName(pod))
	}
	if m.apply(pod, old, answers).isResolved() {
		m.claims.drop(pod.UID)
		return nil
	}
	// Once more, for what has changed before it was known that this pod waits for it.
	m.dirtyPods.Add(pod.UID)
	return nil
}

// UpdatePod says that a pod that was added has changed: volumes may have come or gone, and those whose plugin asks for
// it are set up again. Errors are those of AddPod; a pod that was not added matches [volume.ErrInvalid]. Another source,
// read-only flag or fsGroup of a volume that the pod has matches [ErrVolumeChanged], and nothing is changed.
func (m *Manager) UpdatePod(ctx context.Context, pod *v1.Pod) error {
	if err := validatePod(pod); err != nil {
		return err
	}
	// It is looked at once more when the claims have been read: who removes the pod meanwhile must not get it back.
	known := func(old *podEntry) error {
		if old == nil {
			return unknownPod(pod)
		}
		return nil
	}
	if err := known(m.entryOf(pod.UID)); err != nil {
		return err
	}
	return m.change(ctx, pod, known)
}

func unknownPod(pod *v1.Pod) error {
	return fmt.Errorf("pod %q with UID %q is not on this node: call AddPod first: %w", podKey(pod), pod.UID, volume.ErrInvalid)
}

// RemovePod takes its volumes from a pod. It is the promise that no process of the pod is alive, and will be; nothing
// else takes volumes from a pod. It returns at once: see [Manager.WaitForUnmount]. A pod that was not added is no error:
// what a restart left of it is undone. The pod's directories above its volumes go with the last of them, by rmdir: what
// somebody else keeps there stays. An empty or malformed uid matches [volume.ErrInvalid].
func (m *Manager) RemovePod(uid types.UID) error {
	if err := volume.CheckPathElement(string(uid)); err != nil {
		return fmt.Errorf("UID of the pod to be removed: %w", err)
	}
	release, _ := m.podTurns.Take(nil, uid)
	defer release()
	podName := volume.UniquePodName(uid)
	m.mu.Lock()
	delete(m.pods, uid)
	m.mu.Unlock()
	m.recovery.PodRemoved(podName)
	m.actual.MarkPodRemoved(podName)
	m.claims.drop(uid)
	wanted := m.desired.DeletePod(podName)
	for _, name := range wanted {
		m.executor.ResetBackoff(operationexecutor.Key{Volume: name, Pod: podName})
		m.dirtyPods.AddAll(m.claims.waitingFor(volumeKey(name)))
	}
	m.volumes.AddPod(podName, slices.Concat(wanted, m.actual.GetVolumeNamesForPod(podName)))
	m.recovery.Settle(podName)
	m.recovery.Sweep(podName)
	m.changes.Notify(podName)
	return nil
}

func (m *Manager) entryOf(uid types.UID) *podEntry {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.pods[uid]
}

// mistakes returns the errors that only the caller can mend.
func mistakes(answers []resolution) error {
	var errs []error
	for _, a := range answers {
		if isMistake(a.err) {
			errs = append(errs, a.err)
		}
	}
	return errors.Join(errs...)
}

// apply makes the desired state what answers say, and returns the pod's new entry; old is the one before, or nil. A
// volume that could not be resolved stays as it was: unknown is not absent. Who calls it must have the turn of the pod.
func (m *Manager) apply(pod *v1.Pod, old *podEntry, answers []resolution) *podEntry {
	entry := &podEntry{pod: pod, volumes: make([]podVolume, 0, len(answers))}
	for _, a := range answers {
		v := podVolume{outer: a.outer, name: a.name, plugin: a.plugin.PluginName, readOnly: a.readOnly, err: a.err}
		if err := m.keeps(old, pod, a); err != nil {
			v = old.volume(a.outer)
			v.outer, v.err = a.outer, err
		}
		entry.volumes = append(entry.volumes, v)
	}
	podName := volume.GetUniquePodName(pod)
	dropped := old.without(entry)
	for _, name := range dropped {
		m.desired.DeletePodFromVolume(podName, name)
		m.dirtyPods.AddAll(m.claims.waitingFor(volumeKey(name)))
	}
	added := entry.without(old)
	m.resetBackoff(added)
	if failed := m.desire(entry, answers); len(failed) > 0 {
		entry = entry.withErrors(failed, old)
	}
	m.growth.settle(answers)
	// The entry comes last: a pod that is known and complete has all that it wants in the desired state.
	m.mu.Lock()
	m.pods[pod.UID] = entry
	m.orphans.ForgetPod(pod.UID)
	m.mu.Unlock()
	m.recovery.PodAdded(podName)
	m.volumes.AddPod(podName, slices.Concat(dropped, entry.without(nil), m.actual.GetVolumeNamesForPod(podName)))
	m.changes.Notify(podName)
	return entry
}

// sourceOf returns the source of a volume in the pod's spec, or nil.
func sourceOf(pod *v1.Pod, outer string) *v1.VolumeSource {
	for i := range pod.Spec.Volumes {
		if pod.Spec.Volumes[i].Name == outer {
			return &pod.Spec.Volumes[i].VolumeSource
		}
	}
	return nil
}

// desire enters the volumes that could be resolved into the desired state. It returns the errors
// of those that the state refused.
func (m *Manager) desire(entry *podEntry, answers []resolution) map[string]error {
	var failed map[string]error
	for _, a := range answers {
		if entry.volume(a.outer).err != nil {
			continue
		}
		m.awaitVolume(entry.pod, a)
		_, err := m.desired.AddPodToVolume(cache.AddPodOptions{
			Pod: entry.pod, VolumeSpec: a.spec, Plugin: a.plugin, OuterVolumeSpecName: a.outer, VolumeGidValue: a.gid, SELinuxLabels: a.labels,
		})
		if err != nil {
			if failed == nil {
				failed = make(map[string]error)
			}
			failed[a.outer] = err
		}
	}
	return failed
}

// withErrors returns a copy of p in which some volumes are not resolved. One that the pod had before, by old, it still has.
func (p *podEntry) withErrors(failed map[string]error, old *podEntry) *podEntry {
	next := &podEntry{pod: p.pod, volumes: slices.Clone(p.volumes)}
	for i := range next.volumes {
		v := &next.volumes[i]
		if err := failed[v.outer]; err != nil {
			if old.volume(v.outer).name != v.name {
				v.name = ""
			}
			v.err = err
		}
	}
	return next
}

// resetBackoff lets what a pod wants anew begin at once, however often it failed for others. It comes before the desire,
// so that it forgets no failure that is the pod's own.
func (m *Manager) resetBackoff(added []v1.UniqueVolumeName) {
	for _, name := range added {
		m.executor.ResetBackoff(operationexecutor.Key{Volume: name})
	}
}

// populateAll resolves the claims of pods again, until ctx ends.
func (m *Manager) populateAll(ctx context.Context) {
	failures := make(map[types.UID]int)
	for {
		uid, ok := m.dirtyPods.Get(ctx)
		if !ok {
			return
		}
		if err := m.populate(ctx, uid); err == nil {
			delete(failures, uid)
			continue
		}
		failures[uid]++
		m.dirtyPods.AddAt(uid, retry.At(failures[uid]))
	}
}

// populate resolves the claims of one pod again. An error says that the store could not be read, so that no change of
// it will tell when to try again.
func (m *Manager) populate(ctx context.Context, uid types.UID) error {
	entry := m.entryOf(uid)
	if entry == nil || entry.isResolved() {
		m.claims.drop(uid)
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	defer m.growth.reading()()
	defer m.readsClaims(entry.pod)()
	answers := m.resolver.resolve(ctx, entry.pod)
	release, _ := m.podTurns.Take(nil, uid)
	defer release()
	if m.entryOf(uid) != entry {
		// Somebody has changed the pod meanwhile, and has resolved it anew: what it waits for is looked at once more.
		m.dirtyPods.Add(uid)
		return nil
	}
	entry = m.apply(entry.pod, entry, answers)
	if entry.isResolved() {
		m.claims.drop(uid)
	}
	return unread(answers)
}

// unread returns the first error that is no answer of the store.
func unread(answers []resolution) error {
	for _, a := range answers {
		if a.err != nil && !errors.Is(a.err, ErrClaimNotReady) && !errors.Is(a.err, ErrPluginAwaited) && !isMistake(a.err) {
			return a.err
		}
	}
	return nil
}

// incompletePods returns the pods of which not every volume was resolved the last time.
func (m *Manager) incompletePods() []types.UID {
	m.mu.Lock()
	defer m.mu.Unlock()
	var uids []types.UID
	for uid, entry := range m.pods {
		if !entry.isResolved() {
			uids = append(uids, uid)
		}
	}
	return uids
}
