package volumetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/volume"
)

func snapshotTellsItsSource(e *env) {
	s := e.newSource("content")
	made := s.snapshot(newSnapshotName())
	capacity := s.pv.Spec.Capacity[v1.ResourceStorage]
	switch {
	case made.SourceVolume != s.name:
		e.broken("the snapshot is said to be of volume %q instead of %q", made.SourceVolume, s.name)
	case made.CreationTime.IsZero():
		e.broken("the snapshot has no creation time")
	case made.RestoreSize > capacity.Value():
		e.broken("the restore size is %d, and the source has %d bytes", made.RestoreSize, capacity.Value())
	}
	for range 2 {
		got, err := e.snapshotter().GetSnapshot(e.ctx(), made.Handle)
		if !errors.Is(err, volume.ErrUnsupported) {
			e.must("GetSnapshot", err)
			e.expectSame(made, got)
		}
		e.crash()
	}
}

// expectSame fails unless two answers are about one snapshot.
func (r *caseRun) expectSame(one, two volume.Snapshot) {
	r.t.Helper()
	if !one.CreationTime.Equal(two.CreationTime) {
		r.broken("snapshot %q was made at %v, and then at %v", one.Handle, one.CreationTime, two.CreationTime)
	}
	two.CreationTime = one.CreationTime
	if one != two {
		r.broken("the snapshot is %+v, and then %+v", one, two)
	}
}

func snapshotTwice(e *env) {
	s := e.newSource("of then")
	name := newSnapshotName()
	made := s.snapshot(name)
	s.write("file", "of later")
	e.expectSame(made, s.snapshot(name))
	e.crash()
	e.expectSame(made, s.snapshot(name))
	e.expectRestored(made, map[string]string{"file": "of then"})
	if n := e.listed(made.SourceVolume); n > 1 {
		e.broken("%d snapshots are listed", n)
	}
}

// listed is how many snapshots of a volume are listed, 0 by a plugin that lists none.
func (a *agent) listed(source string) (n int) {
	a.t.Helper()
	for _, s := range a.list() {
		if s.SourceVolume == source {
			n++
		}
	}
	return n
}

func (a *agent) list() []volume.Snapshot {
	a.t.Helper()
	lister, err := a.registry.FindSnapshotListerByName(a.plugin.GetPluginName())
	if err != nil {
		return nil
	}
	all, err := lister.ListSnapshots(a.ctx())
	a.must("ListSnapshots", err)
	return all
}

func snapshotOfAnotherSource(e *env) {
	one, two := e.newSource("of the first"), e.newSource("of the second")
	name := newSnapshotName()
	made := one.snapshot(name)
	for range 2 {
		_, err := two.trySnapshot(e.ctx(), name)
		var conflict *volume.SnapshotSourceError
		if !errors.As(err, &conflict) {
			e.broken("CreateSnapshot of a name that exists with another source returned %v", err)
		}
		e.crash()
	}
	e.expectSame(made, one.snapshot(name))
	e.expectRestored(made, map[string]string{"file": "of the first"})
}

func snapshotOfNothing(e *env) {
	s := e.newSource("content")
	made := s.snapshot(newSnapshotName())
	e.must("DeleteSnapshot", e.snapshotter().DeleteSnapshot(e.ctx(), made.Handle))
	if _, err := e.snapshotter().GetSnapshot(e.ctx(), made.Handle); !errors.Is(err, volume.ErrNotFound) && !errors.Is(err, volume.ErrUnsupported) {
		e.broken("GetSnapshot of a snapshot that was deleted returned %v", err)
	}
	if pv, err := e.tryProvision(e.restoreOf(made)); err == nil {
		e.tryDelete(volume.NewSpecFromPersistentVolume(pv, false))
		e.broken("a volume was made of a snapshot that was deleted")
	}
	s.leave()
	e.must("Delete", e.deleter(s.spec).Delete(e.ctx()))
	if _, err := s.trySnapshot(e.ctx(), newSnapshotName()); !errors.Is(err, volume.ErrNotFound) {
		e.broken("CreateSnapshot of a volume that was deleted returned %v", err)
	}
}

func unknownSnapshotParameter(e *env) {
	s := e.newSource("content")
	made, err := e.snapshotter().CreateSnapshot(e.ctx(), volume.SnapshotOptions{
		Name: newSnapshotName(), Source: s.spec, Parameters: map[string]string{"volumetest-no-such-parameter": "value"},
	})
	if err == nil {
		e.cleanSnapshot(made.Handle)
		e.broken("a snapshot was made from a class with an unknown parameter")
	}
}

func snapshotIsListed(e *env) {
	s := e.newSource("content")
	made := s.snapshot(newSnapshotName())
	for range 2 {
		at := slices.IndexFunc(e.list(), func(l volume.Snapshot) bool { return l.Handle == made.Handle })
		if at < 0 {
			e.broken("ListSnapshots does not list a snapshot that exists")
		}
		e.expectSame(made, e.list()[at])
		e.crash()
	}
	e.must("DeleteSnapshot", e.snapshotter().DeleteSnapshot(e.ctx(), made.Handle))
	for range 2 {
		if e.listed(s.name) > 0 {
			e.broken("ListSnapshots lists a snapshot that was deleted")
		}
		e.crash()
	}
}

func snapshotIsOfItsMoment(e *env) {
	s := e.newSource("first")
	one := s.snapshot(newSnapshotName())
	s.write("file", "second")
	s.write("later", "second")
	two := s.snapshot(newSnapshotName())
	s.write("file", "third")
	e.expectRestored(one, map[string]string{"file": "first", "later": ""})
	e.expectRestored(two, map[string]string{"file": "second", "later": "second"})
	s.pod.expect("file", "third")
	s.leave()
}

func restoredVolumesShareNothing(e *env) {
	s := e.newSource("of the source")
	made := s.snapshot(newSnapshotName())
	one, two := e.restoreAndUse(made), e.restoreAndUse(made)
	one.write("file", "of the first")
	one.sync("file")
	two.expect("file", "of the source")
	two.write("file", "of the second")
	two.sync("file")
	one.expect("file", "of the first")
	s.pod.expect("file", "of the source")
	e.expectRestored(made, map[string]string{"file": "of the source"})
	one.expect("file", "of the first")
	for _, p := range []*podVolume{one, two} {
		p.tearDown()
		p.s.release()
	}
	s.leave()
}

func (e *env) restoreAndUse(s volume.Snapshot) *podVolume {
	e.t.Helper()
	return e.ready(volume.NewSpecFromPersistentVolume(e.provision(e.restoreOf(s)), false)).forPod().setUp()
}

func snapshotOutlivesItsSource(e *env) {
	s := e.newSource("content")
	made := s.snapshot(newSnapshotName())
	s.delete()
	e.expectRestored(made, map[string]string{"file": "content"})
	e.crash()
	e.expectRestored(made, map[string]string{"file": "content"})
}

func restoreLarger(e *env) {
	s := e.newSource("content")
	made := s.snapshot(newSnapshotName())
	s.leave()
	options := e.restoreOf(made)
	has := s.pv.Spec.Capacity[v1.ResourceStorage]
	request(options, 2*has.Value())
	pv := e.provision(options)
	if got := pv.Spec.Capacity[v1.ResourceStorage]; got.CmpInt64(2*has.Value()) < 0 {
		e.broken("the volume has %s, and %d bytes were asked for", got.String(), 2*has.Value())
	}
	p := e.ready(volume.NewSpecFromPersistentVolume(pv, false)).forPod().setUp()
	p.expectCapacity(2 * has.Value())
	p.expect("file", "content")
	p.write("file", "of the restored")
	for range 2 {
		again, err := e.tryProvision(options)
		if err != nil || e.volumeNameOf(again) != e.volumeNameOf(pv) {
			e.broken("the second Provision of the restored volume returned %v", err)
		}
		p.expect("file", "of the restored")
		e.crash()
	}
	p.tearDown()
	p.s.release()
}

func restoreSmaller(e *env) {
	s := e.newSource("content")
	made := s.snapshot(newSnapshotName())
	if made.RestoreSize < 2 {
		e.t.Skipf("the plugin does not know restore sizes")
	}
	options := e.restoreOf(made)
	for _, size := range []int64{made.RestoreSize - 1, made.RestoreSize / 2} {
		request(options, size)
		pv, err := e.tryProvision(options)
		if err == nil {
			e.tryDelete(volume.NewSpecFromPersistentVolume(pv, false))
		}
		var small *volume.RestoreSizeError
		if !errors.As(err, &small) || !errors.Is(err, volume.ErrInfeasible) {
			e.broken("Provision of %d bytes from a snapshot of %d returned %v", size, made.RestoreSize, err)
		}
	}
	request(options, made.RestoreSize)
	e.expectFiles(volume.NewSpecFromPersistentVolume(e.provision(options), false), map[string]string{"file": "content"})
}

// mostWrites is how many files a writer makes at most.
const mostWrites = 2000

// writer makes a file in one volume, syncs it, and then one in the next, in turns.
type writer struct {
	e       *env
	volumes []*source
	written atomic.Int64
	stop    atomic.Bool
}

func numbered(n int64) string { return fmt.Sprintf("file-%d", n) }

func (w *writer) run() error {
	for n := range int64(mostWrites) {
		for _, v := range w.volumes {
			path := v.pod.path + "/" + numbered(n)
			if err := w.e.world.WriteFile(path, []byte("content"), 0o644); err != nil {
				return err
			}
			if err := w.e.syncFile(path); err != nil {
				return err
			}
		}
		w.written.Add(1)
		if w.stop.Load() {
			return nil
		}
	}
	return nil
}

func groupIsOfOneMoment(e *env) {
	one, two := e.newSource("of the first"), e.newSource("of the second")
	w := &writer{e: e, volumes: []*source{one, two}}
	writing := start(w.run)
	group, err := e.tryGroup(newSnapshotName(), one, two)
	w.stop.Store(true)
	<-writing.done
	e.must("writing to volumes of which a group of snapshots is made", writing.err)
	e.must("CreateGroupSnapshot", err)
	if len(group.Snapshots) != 2 {
		e.broken("the group of two volumes has %d snapshots", len(group.Snapshots))
	}
	var count [2]int64
	for _, s := range group.Snapshots {
		at := slices.Index([]string{one.name, two.name}, s.SourceVolume)
		if at < 0 || s.GroupHandle != group.Handle {
			e.broken("snapshot %q of the group is of volume %q and of group %q", s.Handle, s.SourceVolume, s.GroupHandle)
		}
		count[at] = e.countRestored(e.awaitReady(s))
	}
	if first, second := count[0], count[1]; second > first || first > second+1 {
		e.broken("the group has %d writes to the first volume and %d to the second, which took turns", first, second)
	}
}

// countRestored returns how many of the numbered files a snapshot has.
func (e *env) countRestored(s volume.Snapshot) (n int64) {
	e.t.Helper()
	spec := volume.NewSpecFromPersistentVolume(e.provision(e.restoreOf(s)), false)
	p := e.ready(spec).forPod().setUp()
	for e.exists(p.path + "/" + numbered(n)) {
		n++
	}
	p.tearDown()
	p.s.release()
	e.must("Delete of a restored volume", e.deleter(spec).Delete(e.ctx()))
	return n
}

// tryGroup makes a group, which is deleted after the case.
func (e *env) tryGroup(name string, sources ...*source) (volume.GroupSnapshot, error) {
	e.t.Helper()
	options := volume.GroupSnapshotOptions{Name: name}
	for _, s := range sources {
		options.Sources = append(options.Sources, s.spec)
	}
	group, err := e.groupSnapshotter().CreateGroupSnapshot(e.ctx(), options)
	if err == nil {
		e.later(func() {
			_ = e.groupSnapshotter().DeleteGroupSnapshot(e.afterwards(), group.Handle, handlesOf(group))
		})
	}
	return group, err
}

func handlesOf(group volume.GroupSnapshot) []string {
	var handles []string
	for _, s := range group.Snapshots {
		handles = append(handles, s.Handle)
	}
	return handles
}

func (r *caseRun) expectSameGroup(one, two volume.GroupSnapshot) {
	r.t.Helper()
	same := func(a, b string) bool { return a == b }
	if one.Handle != two.Handle || !slices.EqualFunc(handlesOf(one), handlesOf(two), same) {
		r.broken("the group is %q with snapshots %q, and then %q with %q", one.Handle, handlesOf(one), two.Handle, handlesOf(two))
	}
}

func groupTwice(e *env) {
	one, two, other := e.newSource("of the first"), e.newSource("of the second"), e.newSource("of another")
	name := newSnapshotName()
	group, err := e.tryGroup(name, one, two)
	e.must("CreateGroupSnapshot", err)
	one.write("file", "of later")
	for range 2 {
		again, err := e.tryGroup(name, two, one)
		e.must("second CreateGroupSnapshot", err)
		e.expectSameGroup(group, again)
		found, err := e.groupSnapshotter().GetGroupSnapshot(e.ctx(), group.Handle, handlesOf(group))
		if !errors.Is(err, volume.ErrUnsupported) {
			e.must("GetGroupSnapshot", err)
			e.expectSameGroup(group, found)
		}
		for _, sources := range [][]*source{{one}, {one, other}, {one, two, other}} {
			_, err := e.tryGroup(name, sources...)
			var conflict *volume.SnapshotSourceError
			if !errors.As(err, &conflict) {
				e.broken("CreateGroupSnapshot of a name that exists with other sources returned %v", err)
			}
		}
		e.crash()
	}
	for _, s := range group.Snapshots {
		want := "of the second"
		if s.SourceVolume == one.name {
			want = "of the first"
		}
		e.expectRestored(e.awaitReady(s), map[string]string{"file": want})
	}
}

func groupIsDeleted(e *env) {
	one, two := e.newSource("of the first"), e.newSource("of the second")
	group, err := e.tryGroup(newSnapshotName(), one, two)
	e.must("CreateGroupSnapshot", err)
	kept, err := e.tryGroup(newSnapshotName(), one, two)
	e.must("CreateGroupSnapshot", err)
	single := one.snapshot(newSnapshotName())
	wrong := []string{group.Snapshots[0].Handle, kept.Snapshots[1].Handle}
	if err := e.groupSnapshotter().DeleteGroupSnapshot(e.ctx(), group.Handle, wrong); err == nil {
		e.broken("DeleteGroupSnapshot with a snapshot of another group succeeded")
	}
	for _, s := range slices.Concat(group.Snapshots, kept.Snapshots) {
		if _, err := e.snapshotter().GetSnapshot(e.ctx(), s.Handle); !errors.Is(err, volume.ErrUnsupported) {
			e.must("GetSnapshot of a snapshot of a group", err)
		}
	}
	for range 2 {
		err := e.groupSnapshotter().DeleteGroupSnapshot(e.ctx(), group.Handle, handlesOf(group))
		e.must("DeleteGroupSnapshot", err)
		e.crash()
	}
	for _, s := range group.Snapshots {
		if _, err := e.snapshotter().GetSnapshot(e.ctx(), s.Handle); !errors.Is(err, volume.ErrNotFound) && !errors.Is(err, volume.ErrUnsupported) {
			e.broken("GetSnapshot of a snapshot whose group was deleted returned %v", err)
		}
	}
	for _, s := range append(kept.Snapshots, single) {
		want := "of the second"
		if s.SourceVolume == one.name {
			want = "of the first"
		}
		e.expectRestored(e.awaitReady(s), map[string]string{"file": want})
	}
}

func deleteSnapshotTwice(e *env) {
	s := e.newSource("content")
	e.must("DeleteSnapshot of a snapshot that never was", e.snapshotter().DeleteSnapshot(e.ctx(), newSnapshotName()))
	name := newSnapshotName()
	one, two := s.snapshot(name), s.snapshot(name+"-2")
	restored := e.restoreAndUse(one)
	for range 2 {
		e.must("DeleteSnapshot", e.snapshotter().DeleteSnapshot(e.ctx(), one.Handle))
	}
	e.crash()
	e.must("DeleteSnapshot by a new value of the plugin", e.snapshotter().DeleteSnapshot(e.ctx(), one.Handle))
	restored.expect("file", "content")
	s.pod.expect("file", "content")
	e.expectRestored(two, map[string]string{"file": "content"})
	restored.tearDown()
	restored.s.release()
	s.leave()
}

func deleteWhileRestoring(e *env) {
	s := e.newSource("content")
	e.restoreDuringDelete(s, func(restore, remove func(context.Context) error) (error, error, bool) {
		one, two := start(func() error { return restore(e.ctx()) }), start(func() error { return remove(e.ctx()) })
		<-one.done
		<-two.done
		return one.err, two.err, true
	})
	for n := range mostSteps {
		reached := e.restoreDuringDelete(s, func(restore, remove func(context.Context) error) (error, error, bool) {
			return e.interleaved(n, restore, remove)
		})
		if !reached {
			return
		}
	}
}

// restoreDuringDelete restores a volume from a snapshot that is deleted meanwhile, both in the order that run chooses.
func (e *env) restoreDuringDelete(
	s *source, run func(restore, remove func(context.Context) error) (restored, removed error, reached bool),
) bool {
	e.t.Helper()
	made := s.snapshot(newSnapshotName())
	var pv *v1.PersistentVolume
	provisioner, plugin := e.provisioner(e.restoreOf(made)), e.snapshotter()
	restored, removed, reached := run(
		func(ctx context.Context) (err error) {
			pv, err = provisioner.Provision(ctx, nil, nil)
			return err
		},
		func(ctx context.Context) error { return plugin.DeleteSnapshot(ctx, made.Handle) },
	)
	if restored == nil {
		spec := volume.NewSpecFromPersistentVolume(pv, false)
		e.later(func() { e.tryDelete(spec) })
		e.expectFiles(spec, map[string]string{"file": "content"})
	}
	if !errors.Is(removed, volume.ErrInUse) {
		e.must("DeleteSnapshot beside a Provision from it", removed)
	}
	e.must("DeleteSnapshot of what is not read any more", plugin.DeleteSnapshot(e.ctx(), made.Handle))
	return reached
}

func cancelledSnapshots(e *env) {
	s := e.newSource("content")
	name := newSnapshotName()
	var made volume.Snapshot
	create := func(ctx context.Context) error {
		_, err := s.trySnapshot(ctx, name)
		return err
	}
	remove := func(ctx context.Context) error { return e.snapshotter().DeleteSnapshot(ctx, made.Handle) }
	createWhole := func() {
		e.t.Helper()
		e.expectListedWhole(s)
		made = s.snapshot(name)
		e.expectRestored(made, map[string]string{"file": "content"})
	}
	removeWhole := func() {
		e.t.Helper()
		e.must("DeleteSnapshot after one that was cancelled", remove(e.ctx()))
		if e.listed(s.name) > 0 {
			e.broken("ListSnapshots lists a snapshot after DeleteSnapshot")
		}
	}
	e.cut(4, create, createWhole, removeWhole)
	createWhole()
	e.cut(4, remove, removeWhole, createWhole)
	removeWhole()
	for n := range mostSteps {
		ctx, steps := e.endsAtStep(n)
		e.awaitLost(create(ctx))
		e.crash()
		createWhole()
		removeWhole()
		if !steps.reached() {
			return
		}
	}
}

// expectListedWhole fails where a snapshot of the source is listed as ready and has not its content.
func (e *env) expectListedWhole(s *source) {
	e.t.Helper()
	for _, listed := range e.list() {
		if listed.SourceVolume == s.name && listed.ReadyToUse {
			e.expectRestored(listed, map[string]string{"file": "content"})
		}
	}
}
