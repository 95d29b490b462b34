package volumetest

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/volumekit/volumekit/volume"
)

// snapshotHooks change what a mutant does with snapshots.
type snapshotHooks struct {
	create      func(context.Context, volume.SnapshotOptions) (volume.Snapshot, error)
	remove      func(ctx context.Context, handle string) error
	list        func([]volume.Snapshot) []volume.Snapshot
	createGroup func(context.Context, volume.GroupSnapshotOptions) (volume.GroupSnapshot, error)
	removeGroup func(ctx context.Context, handle string) error
	deleted     func(ctx context.Context, source string)
}

func (m *mutant) CreateSnapshot(ctx context.Context, options volume.SnapshotOptions) (volume.Snapshot, error) {
	if m.snapshots.create != nil {
		return m.snapshots.create(ctx, options)
	}
	return m.Plugin.CreateSnapshot(ctx, options)
}

func (m *mutant) DeleteSnapshot(ctx context.Context, handle string) error {
	if m.snapshots.remove != nil {
		return m.snapshots.remove(ctx, handle)
	}
	return m.Plugin.DeleteSnapshot(ctx, handle)
}

func (m *mutant) ListSnapshots(ctx context.Context) ([]volume.Snapshot, error) {
	all, err := m.Plugin.ListSnapshots(ctx)
	if m.snapshots.list != nil {
		all = m.snapshots.list(all)
	}
	return all, err
}

func (m *mutant) CreateGroupSnapshot(ctx context.Context, options volume.GroupSnapshotOptions) (volume.GroupSnapshot, error) {
	if m.snapshots.createGroup != nil {
		return m.snapshots.createGroup(ctx, options)
	}
	return m.Plugin.CreateGroupSnapshot(ctx, options)
}

func (m *mutant) DeleteGroupSnapshot(ctx context.Context, handle string, snapshots []string) error {
	if m.snapshots.removeGroup != nil {
		return m.snapshots.removeGroup(ctx, handle)
	}
	return m.Plugin.DeleteGroupSnapshot(ctx, handle, snapshots)
}

func (m *mutant) NewDeleter(spec *volume.Spec) (volume.Deleter, error) {
	made, err := m.Plugin.NewDeleter(spec)
	if err != nil || m.snapshots.deleted == nil {
		return made, err
	}
	return &deletion{Deleter: made, after: func(ctx context.Context) { m.snapshots.deleted(ctx, spec.Name()) }}, nil
}

// deletion is a deleter that does more than it should.
type deletion struct {
	volume.Deleter
	after func(context.Context)
}

func (d *deletion) Delete(ctx context.Context) error {
	err := d.Deleter.Delete(ctx)
	if err == nil {
		d.after(ctx)
	}
	return err
}

// snapshotDefects are the mutants of the rules about snapshots.
func snapshotDefects() map[string]func(m *mutant) {
	return map[string]func(m *mutant){
		"N1": func(m *mutant) {
			m.snapshots.create = func(ctx context.Context, options volume.SnapshotOptions) (volume.Snapshot, error) {
				made, err := m.Plugin.CreateSnapshot(ctx, options)
				made.SourceVolume = "another"
				return made, err
			}
		},
		"N2": func(m *mutant) {
			m.snapshots.create = func(ctx context.Context, options volume.SnapshotOptions) (volume.Snapshot, error) {
				err := m.Plugin.DeleteSnapshot(ctx, options.Name)
				made, makeErr := m.Plugin.CreateSnapshot(ctx, options)
				return made, errors.Join(err, makeErr)
			}
		},
		"N3": func(m *mutant) {
			m.snapshots.create = func(ctx context.Context, options volume.SnapshotOptions) (volume.Snapshot, error) {
				made, err := m.Plugin.CreateSnapshot(ctx, options)
				if errors.Is(err, volume.ErrInfeasible) {
					return m.Plugin.GetSnapshot(ctx, options.Name)
				}
				return made, err
			}
		},
		"N4": (*mutant).restoringNothing,
		"N5": func(m *mutant) {
			m.snapshots.create = func(ctx context.Context, options volume.SnapshotOptions) (volume.Snapshot, error) {
				options.Parameters = nil
				return m.Plugin.CreateSnapshot(ctx, options)
			}
		},
		"N6":  func(m *mutant) { m.snapshots.list = func([]volume.Snapshot) []volume.Snapshot { return nil } },
		"N7":  (*mutant).snapshottingLate,
		"N8":  (*mutant).restoringOnce,
		"N9":  (*mutant).deletingSnapshotsOfTheSource,
		"N10": (*mutant).restoringSmall,
		"N11": func(m *mutant) {
			m.provisioner = func(o volume.VolumeOptions) volume.VolumeOptions {
				o.PVC = o.PVC.DeepCopy()
				if o.Snapshot != nil {
					request(o, o.Snapshot.RestoreSize)
				}
				return o
			}
		},
		"N12": func(m *mutant) { m.snapshots.createGroup = m.oneAfterTheOther },
		"N13": func(m *mutant) {
			m.snapshots.createGroup = func(ctx context.Context, options volume.GroupSnapshotOptions) (volume.GroupSnapshot, error) {
				options.Name += nextID()
				return m.Plugin.CreateGroupSnapshot(ctx, options)
			}
		},
		"N14": func(m *mutant) {
			m.snapshots.removeGroup = func(ctx context.Context, handle string) error {
				return m.Plugin.DeleteGroupSnapshot(ctx, handle, nil)
			}
		},
		"N15": func(m *mutant) {
			m.snapshots.remove = func(ctx context.Context, handle string) error {
				if _, err := m.Plugin.GetSnapshot(ctx, handle); err != nil {
					return err
				}
				return m.Plugin.DeleteSnapshot(ctx, handle)
			}
		},
		"N16": (*mutant).restoringWhatMayBeGone,
		"N17": func(m *mutant) {
			m.snapshots.create = func(ctx context.Context, options volume.SnapshotOptions) (made volume.Snapshot, err error) {
				err = m.cut.call(ctx, func() error {
					made, err = m.Plugin.CreateSnapshot(ctx, options)
					return err
				})
				return made, err
			}
		},
	}
}

// withoutSnapshot asks for an empty volume.
func withoutSnapshot(o volume.VolumeOptions) volume.VolumeOptions {
	o.PVC = o.PVC.DeepCopy()
	o.Snapshot, o.PVC.Spec.DataSource = nil, nil
	return o
}

// restoringNothing makes an empty volume of a snapshot that does not exist.
func (m *mutant) restoringNothing() {
	m.provisioner = func(o volume.VolumeOptions) volume.VolumeOptions {
		if o.Snapshot == nil {
			return o
		}
		if _, err := m.Plugin.GetSnapshot(context.Background(), o.Snapshot.Handle); err != nil {
			return withoutSnapshot(o)
		}
		return o
	}
}

// snapshottingLate reads the source when a volume is restored.
func (m *mutant) snapshottingLate() {
	var taken sync.Map
	m.snapshots.create = func(ctx context.Context, options volume.SnapshotOptions) (volume.Snapshot, error) {
		taken.Store(options.Name, options)
		return m.Plugin.CreateSnapshot(ctx, options)
	}
	m.provisioner = func(o volume.VolumeOptions) volume.VolumeOptions {
		if o.Snapshot == nil {
			return o
		}
		if options, ok := taken.Load(o.Snapshot.Handle); ok {
			_ = m.Plugin.DeleteSnapshot(context.Background(), o.Snapshot.Handle)
			_, _ = m.Plugin.CreateSnapshot(context.Background(), options.(volume.SnapshotOptions))
		}
		return o
	}
}

// restoringOnce gives all volumes of a snapshot the storage of the first.
func (m *mutant) restoringOnce() {
	restoring, first := false, ""
	m.provisioner = func(o volume.VolumeOptions) volume.VolumeOptions {
		restoring = o.Snapshot != nil
		return o
	}
	m.provisioned = func(pv *v1.PersistentVolume) {
		if !restoring {
			return
		}
		if first == "" {
			first = pv.Spec.CSI.VolumeHandle
		}
		pv.Spec.CSI.VolumeHandle = first
	}
}

func (m *mutant) deletingSnapshotsOfTheSource() {
	m.snapshots.deleted = func(ctx context.Context, source string) {
		for _, s := range m.Backend().Snapshots() {
			if s.SourceVolume == source {
				_ = m.Plugin.DeleteSnapshot(ctx, s.Handle)
			}
		}
	}
}

// restoringSmall gives each restored volume the size of its snapshot.
func (m *mutant) restoringSmall() {
	size := int64(0)
	m.provisioner = func(o volume.VolumeOptions) volume.VolumeOptions {
		size = 0
		if o.Snapshot != nil {
			size = o.Snapshot.RestoreSize
		}
		return o
	}
	m.provisioned = func(pv *v1.PersistentVolume) {
		if size > 0 {
			pv.Spec.Capacity = v1.ResourceList{v1.ResourceStorage: *resource.NewQuantity(size, resource.BinarySI)}
		}
	}
}

// oneAfterTheOther makes the snapshots of a group while its volumes are written to.
func (m *mutant) oneAfterTheOther(ctx context.Context, options volume.GroupSnapshotOptions) (volume.GroupSnapshot, error) {
	group := volume.GroupSnapshot{Handle: options.Name, ReadyToUse: true}
	for i, source := range options.Sources {
		if i > 0 {
			m.awaitWrites(source)
		}
		made, err := m.Plugin.CreateSnapshot(ctx, volume.SnapshotOptions{Name: options.Name + "-" + numbered(int64(i)), Source: source})
		if err != nil {
			return volume.GroupSnapshot{}, err
		}
		made.GroupHandle = options.Name
		group.Snapshots = append(group.Snapshots, made)
	}
	return group, nil
}

// awaitWrites returns when some more files are in a volume.
func (m *mutant) awaitWrites(spec *volume.Spec) {
	attacher, err := m.Plugin.NewAttacher()
	if err != nil {
		return
	}
	dir, err := attacher.GetDeviceMountPath(spec)
	if err != nil {
		return
	}
	has := func(n int64) bool {
		_, err := m.world.Lstat(dir + "/" + numbered(n))
		return err == nil
	}
	n := int64(0)
	for has(n) {
		n++
	}
	for last := min(n+3, mostWrites-1); !has(last); {
		runtime.Gosched()
	}
}

// restoringWhatMayBeGone looks whether the snapshot is there, and makes an empty volume if it is deleted then.
func (m *mutant) restoringWhatMayBeGone() {
	var options volume.VolumeOptions
	m.provisioner = func(o volume.VolumeOptions) volume.VolumeOptions {
		options = o
		return o
	}
	m.provision = func(ctx context.Context, made volume.Provisioner) (*v1.PersistentVolume, error) {
		yield(ctx)
		if options.Snapshot == nil || slices.ContainsFunc(m.Backend().Snapshots(), func(s volume.Snapshot) bool {
			return s.Handle == options.Snapshot.Handle
		}) {
			return made.Provision(ctx, nil, nil)
		}
		empty, err := m.Plugin.NewProvisioner(withoutSnapshot(options))
		if err != nil {
			return nil, err
		}
		return empty.Provision(ctx, nil, nil)
	}
}
