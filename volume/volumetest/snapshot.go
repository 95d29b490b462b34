package volumetest

import (
	"context"
	"errors"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/volumekit/volumekit/volume"
)

// The API group and kind of a snapshot as a claim's data source names it.
const (
	snapshotGroup = "snapshot.storage.k8s.io"
	snapshotKind  = "VolumeSnapshot"
)

// syncer is a World that can sync a file. In memory every file is durable.
type syncer interface {
	// Sync syncs a file and the directory that names it.
	Sync(name string) error
}

// sync makes a file of a volume durable.
func (p *podVolume) sync(name string) {
	p.e.t.Helper()
	if err := p.e.syncFile(p.path + "/" + name); err != nil {
		p.e.broken("syncing through %s: %v", p.path, err)
	}
}

// source is a volume in use, of which a case makes snapshots.
type source struct {
	e    *env
	pv   *v1.PersistentVolume
	spec *volume.Spec
	name string // by GetVolumeName
	at   *staged
	pod  *podVolume
}

// newSource makes a volume with a file, and leaves it in use.
func (e *env) newSource(content string) *source {
	e.t.Helper()
	pv := e.provision(e.volumeOptions())
	s := &source{e: e, pv: pv, spec: volume.NewSpecFromPersistentVolume(pv, false), name: e.volumeNameOf(pv)}
	if volume.IsBlock(s.spec) {
		e.t.Skipf("the volume is a device: give Config.NewVolumeOptions that asks for a filesystem")
	}
	_, err := e.registry.FindSnapshottablePluginBySpec(s.spec)
	e.must("CanSnapshot of a volume that the plugin has made", err)
	s.use()
	s.write("file", content)
	return s
}

func (s *source) use() {
	s.e.t.Helper()
	s.at = s.e.ready(s.spec)
	s.pod = s.at.forPod().setUp()
}

func (s *source) leave() {
	s.e.t.Helper()
	s.pod.tearDown()
	s.at.release()
	s.pod, s.at = nil, nil
}

func (s *source) write(file, content string) {
	s.e.t.Helper()
	s.pod.write(file, content)
	s.pod.sync(file)
}

// delete deletes the source. It returns false if the storage keeps it while snapshots exist.
func (s *source) delete() bool {
	s.e.t.Helper()
	s.leave()
	err := s.e.deleter(s.spec).Delete(s.e.ctx())
	if !errors.Is(err, volume.ErrInUse) {
		s.e.must("Delete of the source", err)
	}
	return err == nil
}

func newSnapshotName() string { return "volumetest-snapshot-" + nextID() }

// trySnapshot makes a snapshot, which is deleted after the case.
func (s *source) trySnapshot(ctx context.Context, name string) (volume.Snapshot, error) {
	s.e.t.Helper()
	made, err := s.e.snapshotter().CreateSnapshot(ctx, volume.SnapshotOptions{Name: name, Source: s.spec})
	if err == nil {
		s.e.later(func() { s.e.cleanSnapshot(made.Handle) }) //nolint:contextcheck // After the case its context has ended.
	}
	return made, err
}

func (a *agent) cleanSnapshot(handle string) {
	if err := a.snapshotter().DeleteSnapshot(a.afterwards(), handle); err != nil && !errors.Is(err, volume.ErrInfeasible) {
		a.t.Logf("clean-up: deleting snapshot %q: %v", handle, err)
	}
}

// snapshot makes a snapshot and waits until it is ready to use. If the plugin needs that, the source is not in use meanwhile.
func (s *source) snapshot(name string) volume.Snapshot {
	s.e.t.Helper()
	made, err := s.trySnapshot(s.e.ctx(), name)
	if errors.Is(err, volume.ErrInUse) && s.at != nil {
		s.e.requireLasting()
		s.leave()
		made, err = s.trySnapshot(s.e.ctx(), name)
		s.use()
	}
	s.e.must("CreateSnapshot", err)
	if made.Handle == "" {
		s.e.broken("CreateSnapshot returned a snapshot without a handle")
	}
	return s.e.awaitReady(made)
}

// awaitReady returns a snapshot as soon as it is ready to use.
func (a *agent) awaitReady(s volume.Snapshot) volume.Snapshot {
	a.t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !s.ReadyToUse {
		select {
		case <-tick.C:
		case <-a.ctx().Done():
			a.broken("snapshot %q does not become ready to use", s.Handle)
		}
		var err error
		s, err = a.snapshotter().GetSnapshot(a.ctx(), s.Handle)
		a.must("GetSnapshot", err)
	}
	return s
}

// restoreOf returns the options of a volume that is restored from a snapshot. Its size is at least the restore size.
func (e *env) restoreOf(s volume.Snapshot) volume.VolumeOptions {
	options := e.volumeOptions()
	options.PVC = options.PVC.DeepCopy()
	group := snapshotGroup
	options.PVC.Spec.DataSource = &v1.TypedLocalObjectReference{APIGroup: &group, Kind: snapshotKind, Name: "snapshot"}
	options.Snapshot = &s
	if has := options.PVC.Spec.Resources.Requests[v1.ResourceStorage]; has.CmpInt64(s.RestoreSize) < 0 {
		request(options, s.RestoreSize)
	}
	return options
}

// request sets the size that the claim of options requests, in bytes.
func request(options volume.VolumeOptions, size int64) {
	options.PVC.Spec.Resources.Requests = v1.ResourceList{
		v1.ResourceStorage: *resource.NewQuantity(size, resource.BinarySI),
	}
}

// expectRestored restores a volume and fails the case unless it has the files; an empty content means no file.
func (e *env) expectRestored(s volume.Snapshot, files map[string]string) {
	e.t.Helper()
	e.expectFiles(volume.NewSpecFromPersistentVolume(e.provision(e.restoreOf(s)), false), files)
}

// expectFiles sets a volume up, compares its files, and deletes it.
func (e *env) expectFiles(spec *volume.Spec, files map[string]string) {
	e.t.Helper()
	s := e.ready(spec)
	p := s.forPod().setUp()
	p.compare(files)
	p.tearDown()
	s.release()
	e.must("Delete of a restored volume", e.deleter(spec).Delete(e.ctx()))
}

func (p *podVolume) compare(files map[string]string) {
	p.e.t.Helper()
	for name, content := range files {
		if content == "" {
			p.expectEmptyOf(name)
			continue
		}
		p.expect(name, content)
	}
}
