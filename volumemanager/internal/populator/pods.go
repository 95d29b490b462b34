package populator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/cache"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/retry"
)

// Add adds a pod, or updates it; see volumemanager.Manager.AddPod.
func (p *Populator) Add(ctx context.Context, pod *v1.Pod) error {
	if err := Validate(pod); err != nil {
		return err
	}
	return p.change(ctx, pod, func(old *Pod) error {
		if old != nil && store.NameOf(old.Pod) != store.NameOf(pod) {
			return fmt.Errorf("pod %q has UID %q, which is that of pod %q: give each pod its own: %w",
				store.NameOf(pod), pod.UID, store.NameOf(old.Pod), volume.ErrInvalid)
		}
		return nil
	})
}

// Update updates a known pod; see volumemanager.Manager.UpdatePod.
func (p *Populator) Update(ctx context.Context, pod *v1.Pod) error {
	if err := Validate(pod); err != nil {
		return err
	}
	// change checks this again after it has read the claims: a pod that is removed meanwhile must not come back.
	known := func(old *Pod) error {
		if old == nil {
			return Unknown(pod)
		}
		return nil
	}
	if err := known(p.Pod(pod.UID)); err != nil {
		return err
	}
	return p.change(ctx, pod, known)
}

// Unknown returns the error of a call for an unknown pod.
func Unknown(pod *v1.Pod) error {
	return fmt.Errorf("pod %q with UID %q is not on this node: call AddPod first: %w", store.NameOf(pod), pod.UID, volume.ErrInvalid)
}

// change enters what pod wants into the desired state, unless check refuses. check gets the pod as it was before, or nil.
func (p *Populator) change(ctx context.Context, pod *v1.Pod, check func(old *Pod) error) error {
	pod = copyOfPod(pod)
	defer p.read(pod)()
	answers := p.resolver.resolve(ctx, pod)
	if ctx.Err() != nil {
		p.dirty.Add(pod.UID) // which forgets what it waits for, if the pod is not known
		return fmt.Errorf("pod %q was not added: its claims were not read in time: %w", store.NameOf(pod), context.Cause(ctx))
	}
	release, ok := p.locks.Take(ctx.Done(), pod.UID)
	if !ok {
		return fmt.Errorf("pod %q is being changed by another call: %w", store.NameOf(pod), context.Cause(ctx))
	}
	defer release()
	old := p.Pod(pod.UID)
	if err := cmp.Or(check(old), mistakes(answers), p.refuses(old, pod, answers)); err != nil {
		if old == nil {
			p.waits.drop(pod.UID)
		}
		return err
	}
	if old != nil {
		p.options.Actual.MarkRemountRequired(volume.GetUniquePodName(pod))
	}
	if p.apply(pod, old, answers).isResolved() {
		p.waits.drop(pod.UID)
		return nil
	}
	// Resolve it once more: an object may have changed before the pod waited for it.
	p.dirty.Add(pod.UID)
	return nil
}

// Remove takes its volumes from a pod. The pod may be unknown.
func (p *Populator) Remove(uid types.UID) {
	release, _ := p.locks.Take(nil, uid)
	defer release()
	podName := volume.UniquePodName(uid)
	p.mu.Lock()
	delete(p.pods, uid)
	p.mu.Unlock()
	p.options.Earlier.PodRemoved(podName)
	p.options.Actual.MarkPodRemoved(podName)
	p.waits.drop(uid)
	wanted := p.options.Desired.DeletePod(podName)
	for _, name := range wanted {
		p.options.ResetBackoff(operationexecutor.Key{Volume: name, Pod: podName})
		p.dirty.AddAll(p.waits.waitingFor(volumeKey(name)))
	}
	p.options.Plan(podName, slices.Concat(wanted, p.options.Actual.GetVolumeNamesForPod(podName)))
	p.options.Earlier.ForgetRemoval(podName)
	p.options.Earlier.RemoveDirsAfterRead(podName)
	p.options.Notify(podName)
}

// mistakes returns the errors that only the caller can correct.
func mistakes(answers []resolution) error {
	var errs []error
	for _, a := range answers {
		if isMistake(a.Err) {
			errs = append(errs, a.Err)
		}
	}
	return errors.Join(errs...)
}

// apply enters the answers into the desired state, and returns the pod as it is known from now on. old is the pod as it was
// before, or nil. A volume that could not be resolved stays as it was: unknown is not absent. The caller holds the pod's
// lock.
func (p *Populator) apply(pod *v1.Pod, old *Pod, answers []resolution) *Pod {
	known := &Pod{Pod: pod, Volumes: make([]Volume, 0, len(answers))}
	for _, a := range answers {
		v := a.Volume
		if err := p.keeps(old, pod, a); err != nil {
			v = old.Volume(a.Outer)
			v.Outer, v.Err = a.Outer, err
		}
		known.Volumes = append(known.Volumes, v)
	}
	podName := volume.GetUniquePodName(pod)
	dropped := old.without(known)
	for _, name := range dropped {
		p.options.Desired.DeletePodFromVolume(podName, name)
		p.dirty.AddAll(p.waits.waitingFor(volumeKey(name)))
	}
	// A volume that is new to the pod begins at once, even if it has failed for other pods. The reset comes before desire:
	// it therefore drops no failure of this pod.
	for _, name := range known.without(old) {
		p.options.ResetBackoff(operationexecutor.Key{Volume: name})
	}
	p.desire(known, old, answers)
	known.since(old, time.Now())
	// The pod is entered last: the desired state then holds everything that a known and complete pod wants.
	p.mu.Lock()
	p.pods[pod.UID] = known
	p.options.Orphans.ForgetPod(pod.UID)
	p.mu.Unlock()
	p.options.Earlier.PodAdded(podName)
	p.options.Plan(podName, slices.Concat(dropped, known.without(nil), p.options.Actual.GetVolumeNamesForPod(podName)))
	p.options.Notify(podName)
	return known
}

// desire enters the resolved volumes into the desired state. If the state refuses a volume, it counts as not resolved; the
// pod keeps it if old had it.
func (p *Populator) desire(pod, old *Pod, answers []resolution) {
	for i, a := range answers {
		v := &pod.Volumes[i]
		if v.Err != nil {
			p.desireKept(pod.Pod, v)
			continue
		}
		// The pod starts waiting for the release of the volume before it asks for the volume: it misses no release in
		// between.
		if len(a.want.SELinuxLabels) > 0 {
			p.waits.add(pod.Pod.UID, volumeKey(a.Name))
		}
		if _, v.Err = p.options.Desired.AddPodToVolume(a.want); v.Err != nil {
			if old.Volume(v.Outer).Name != v.Name {
				v.Name = ""
			}
			continue
		}
		if pv := a.want.VolumeSpec.PersistentVolume; pv != nil {
			p.options.Expansion.ApplyChangedSize(a.Name, pv.Name)
		}
	}
}

// desireKept enters an update of a pod for a volume that the pod keeps although it could not be resolved: the volume is set up again
// for the updated pod, too.
func (p *Populator) desireKept(pod *v1.Pod, v *Volume) {
	row, ok := p.options.Desired.VolumeToMount(v.Name, volume.GetUniquePodName(pod))
	if !ok || row.Pod == pod {
		return
	}
	want := cache.AddPodOptions{Pod: pod, VolumeSpec: row.VolumeSpec, OuterVolumeSpecName: v.Outer, VolumeGidValue: row.VolumeGidValue}
	if row.SELinuxLabel != "" {
		want.SELinuxLabels = []string{row.SELinuxLabel}
	}
	if _, err := p.options.Desired.AddPodToVolume(want); err != nil {
		v.Err = errors.Join(v.Err, err)
	}
}

// sourceOf returns the source of a volume in the pod's spec; nil if there is none.
func sourceOf(pod *v1.Pod, outer string) *v1.VolumeSource {
	for i := range pod.Spec.Volumes {
		if pod.Spec.Volumes[i].Name == outer {
			return &pod.Spec.Volumes[i].VolumeSource
		}
	}
	return nil
}

// populateAll resolves the claims of pods again, until ctx ends. If a plugin ends the goroutine (runtime.Goexit), another one goes on
// as part of wg.
func (p *Populator) populateAll(ctx context.Context, wg *sync.WaitGroup) {
	failures := make(map[types.UID]int)
	var uid types.UID
	ended := false
	defer func() {
		if !ended {
			p.dirty.AddAt(uid, retry.At(1))
			wg.Go(func() { p.populateAll(ctx, wg) })
		}
	}()
	for {
		var ok bool
		if uid, ok = p.dirty.Get(ctx); !ok {
			ended = true
			return
		}
		if err := p.populate(ctx, uid); err == nil {
			delete(failures, uid)
			continue
		}
		failures[uid]++
		p.dirty.AddAt(uid, retry.At(failures[uid]))
	}
}

// populate resolves the claims of one pod again. An error says that the store could not be read: no change of the store will
// then trigger the next attempt.
func (p *Populator) populate(ctx context.Context, uid types.UID) error {
	known := p.Pod(uid)
	if known == nil || known.isResolved() {
		p.waits.drop(uid)
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	defer p.read(known.Pod)()
	answers := p.resolver.resolve(ctx, known.Pod)
	release, _ := p.locks.Take(nil, uid)
	defer release()
	if p.Pod(uid) != known {
		// Another call has changed and resolved the pod meanwhile. Check once more what it waits for.
		p.dirty.Add(uid)
		return nil
	}
	if p.apply(known.Pod, known, answers).isResolved() {
		p.waits.drop(uid)
	}
	return unread(answers)
}

// unread returns the first error that says that the store could not be read.
func unread(answers []resolution) error {
	for _, a := range answers {
		if a.Err != nil && !errors.Is(a.Err, ErrClaimNotReady) && !errors.Is(a.Err, ErrPluginAwaited) && !isMistake(a.Err) {
			return a.Err
		}
	}
	return nil
}

// Recheck resolves those pods again whose last attempt did not resolve every volume.
func (p *Populator) Recheck() {
	p.mu.Lock()
	var uids []types.UID
	for uid, pod := range p.pods {
		if !pod.isResolved() {
			uids = append(uids, uid)
		}
	}
	p.mu.Unlock()
	p.dirty.AddAll(uids)
}
