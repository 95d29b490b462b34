package volumemanager

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/cache"
	"github.com/volumekit/volumekit/internal/record"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/mountwatch"
	"github.com/volumekit/volumekit/volumemanager/internal/podvolume"
)

// recover locks the root and the directories of records, reads what an earlier manager left, and makes it the actual state: every
// part of it uncertain. It asks no plugin to do anything and touches no mount.
func (m *Manager) recover(ctx context.Context) error {
	if err := m.root.Take(); err != nil {
		return err
	}
	if err := m.recoverRecords(ctx); err != nil {
		return errors.Join(err, m.root.Release())
	}
	return nil
}

func (m *Manager) recoverRecords(ctx context.Context) error {
	if m.journal == nil {
		return nil
	}
	m.journal.prepare(m)
	if err := m.journal.open(m.options); err != nil {
		return err
	}
	if err := m.readRecords(ctx); err != nil {
		return errors.Join(err, m.journal.close(ctx))
	}
	return nil
}

func (m *Manager) readRecords(ctx context.Context) error {
	found, damaged, err := m.journal.load(m.plugins.Host())
	if err != nil {
		return err
	}
	for _, d := range damaged {
		m.options.Logger.Error("a record cannot be used; what it stands for is not known and is left alone", "path", d.Path, "error", d.Err)
	}
	m.mu.Lock()
	m.damaged = damaged
	m.mu.Unlock()
	if m.found, err = m.compareMounts(ctx, found); err != nil {
		m.options.Logger.Error("the mount table could not be compared with the records", "error", err)
	}
	m.keepUnproven(found)
	return m.adoptAll(found)
}

// adoptAll makes what was found a part of the actual state, and has it planned. Nothing of it is undone before all pods
// are known.
func (m *Manager) adoptAll(found []foundVolume) error {
	names := make([]v1.UniqueVolumeName, 0, len(found))
	for _, v := range found {
		if err := m.adopt(v.record, v.spec); err != nil {
			return err
		}
		names = append(names, v.record.Volume)
	}
	m.mu.Lock()
	for _, name := range names {
		if !m.podsComplete {
			m.adopted[name] = struct{}{}
		}
	}
	m.mu.Unlock()
	m.volumes.AddAll(names)
	return nil
}

// adopt makes a record a part of the actual state.
func (m *Manager) adopt(r volumeRecord, spec *volume.Spec) error {
	found := cache.ReconstructedVolume{
		VolumeName: r.Volume, VolumeSpec: spec, PluginName: r.Plugin,
		PluginIsAttachable: r.Attachment != nil, PluginIsDeviceMountable: r.Staging != nil,
	}
	// A plugin that is not registered any more answers nothing; the record then says what there is to undo.
	if ok, err := m.plugins.IsAttachable(spec); err == nil {
		found.PluginIsAttachable = found.PluginIsAttachable || ok
	}
	if ok, err := m.plugins.IsDeviceMountable(spec); err == nil {
		found.PluginIsDeviceMountable = found.PluginIsDeviceMountable || ok
	}
	if r.Attachment != nil {
		found.DevicePath = r.Attachment.DevicePath
	}
	if r.Staging != nil {
		found.DeviceMountPath, found.SELinuxMountContext = r.Staging.Path, r.Staging.SELinux
		if r.Staging.DevicePath != "" {
			found.DevicePath = r.Staging.DevicePath
		}
	}
	if err := m.actual.AddReconstructedVolume(found); err != nil {
		return fmt.Errorf("record of volume %q: %w", r.Volume, err)
	}
	for _, uid := range slices.Sorted(maps.Keys(r.Pods)) {
		p := r.Pods[uid]
		pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name, UID: uid}}
		_, err := m.actual.AddReconstructedPod(operationexecutor.MarkVolumeOpts{
			VolumeName: r.Volume, PodName: volume.GetUniquePodName(pod), PodUID: uid, Pod: pod,
			VolumeSpec: spec, OuterVolumeSpecNames: p.OuterNames, MountPath: p.Path,
			SELinuxMountContext: p.SELinux,
		})
		if err != nil {
			return fmt.Errorf("record of volume %q and pod %q: %w", r.Volume, uid, err)
		}
		if m.isOutlived(volume.UniquePodName(uid)) {
			m.actual.MarkPodRemoved(volume.UniquePodName(uid))
		}
	}
	return nil
}

// isOutlived reports whether a pod was removed before all that a restart left was known.
func (m *Manager) isOutlived(podName volume.UniquePodName) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, outlived := m.outlived[podName]
	return outlived
}

// prepare gives the journal what it needs of the manager.
func (j *journal) prepare(m *Manager) {
	j.mounts, _ = m.options.Mounter.(MountTable)
	if mountwatch.IsKernel(m.options.Mounter) {
		j.learned = m.watch.MountAt
	}
	j.logger, j.agrees, j.renamed = m.options.Logger, m.agrees, m.renamed
	j.root = m.root
}

// open locks the directories. One that another manager has locked is an error that matches [volume.ErrInUse].
func (j *journal) open(o Options) (err error) {
	if j.bootID, err = j.disk.bootID(); err != nil {
		return err
	}
	if j.runtime, err = j.disk.openDir(o.RuntimeDir, record.Options{}); err != nil {
		return err
	}
	j.state = j.runtime
	if o.StateDir != "" {
		if j.state, err = j.disk.openDir(o.StateDir, record.Options{Sync: true}); err != nil {
			return errors.Join(err, j.runtime.Close())
		}
	}
	return nil
}

// closeState closes the directory of the attachments where it is one of its own.
func (j *journal) closeState() error {
	if j.runtime == j.state {
		return nil
	}
	return j.state.Close()
}

func openRecords(path string, o record.Options) (recordDir, error) {
	dir, err := record.Open(path, o)
	switch {
	case errors.Is(err, record.ErrLocked):
		return nil, fmt.Errorf("%w: %w", err, volume.ErrInUse)
	case errors.Is(err, record.ErrUnsafe):
		return nil, fmt.Errorf("%w: %w", err, volume.ErrInvalid)
	case err != nil:
		return nil, err
	}
	return dir, nil
}

// load reads all records and enters them into the journal. What cannot be used is taken out of use. The order is that of
// the volumes' names.
func (j *journal) load(host volume.VolumeHost) ([]foundVolume, []DamagedRecord, error) {
	loaded, damaged, err := j.readAll(host)
	if err != nil {
		return nil, nil, err
	}
	refuseShared(loaded)
	var moved []movedRecord
	all, stale := make(map[v1.UniqueVolumeName]foundVolume), make(map[v1.UniqueVolumeName]bool)
	own := make(map[v1.UniqueVolumeName][]loadedRecord)
	for _, l := range loaded {
		if l.err != nil {
			damaged = append(damaged, damagedRecord(l.dir.Quarantine(l.key, l.err)))
			continue
		}
		if l.own != "" {
			own[l.record.Volume] = append(own[l.record.Volume], l)
			continue
		}
		r, name := l.record, l.record.Volume
		all[name] = foundVolume{
			record: merge(all[name].record, r.afterBoot(j.bootID)), spec: l.spec, unproven: all[name].unproven || l.unproven,
		}
		stale[name] = stale[name] || j.isMisplaced(r, l.dir)
		if l.key != string(name) {
			moved = append(moved, movedRecord{dir: l.dir, key: l.key, to: name})
			stale[name] = true
		}
	}
	for name, v := range all {
		j.enter(journalEntry{at: podvolume.Key{Volume: name}, record: v.record, stale: stale[name]})
	}
	for name, records := range own {
		v := all[name]
		v.record = v.record.clone()
		for _, l := range records {
			v = j.enterOwn(l, v)
		}
		all[name] = v
	}
	j.move(moved)
	found := make([]foundVolume, 0, len(all))
	for _, name := range slices.Sorted(maps.Keys(all)) {
		found = append(found, all[name])
	}
	return found, damaged, nil
}

// loadedRecord is a record as it was read, or what is wrong with it.
type loadedRecord struct {
	foundVolume

	dir recordDir
	key string
	err error
}

// readAll reads the records of both directories, in the order of their keys, and what is damaged.
func (j *journal) readAll(host volume.VolumeHost) (loaded []loadedRecord, damaged []DamagedRecord, err error) {
	for _, dir := range slices.Compact([]recordDir{j.runtime, j.state}) {
		records, bad, err := dir.Load()
		if err != nil {
			return nil, nil, err
		}
		for _, d := range bad {
			damaged = append(damaged, damagedRecord(d))
		}
		loaded = append(loaded, j.decodeRecords(dir, records, host)...)
	}
	return loaded, damaged, nil
}

func damagedRecord(d record.Damaged) DamagedRecord { return DamagedRecord{Path: d.Path, Err: d.Err} }

// decodeRecords decodes records on every processor, in their order.
func (j *journal) decodeRecords(dir recordDir, records []record.Record, host volume.VolumeHost) []loadedRecord {
	decoded := make([]loadedRecord, len(records))
	share := len(records)/runtime.GOMAXPROCS(0) + 1
	var wg sync.WaitGroup
	for from := 0; from < len(records); from += share {
		wg.Go(func() {
			for i := from; i < min(from+share, len(records)); i++ {
				v, err := decodeRecord(records[i].Key, records[i].Payload, host)
				if err == nil {
					v = j.renamed(v)
					v.unproven, err = j.compare(v)
				}
				decoded[i] = loadedRecord{foundVolume: v, dir: dir, key: records[i].Key, err: err}
			}
		})
	}
	wg.Wait()
	return decoded
}

// compare compares a record with its plugin. It is unproven while the plugin does not answer.
func (j *journal) compare(v foundVolume) (unproven bool, err error) {
	if j.agrees == nil {
		return false, nil
	}
	err = j.agrees(v.record, v.spec)
	if err == nil || errors.Is(err, errDisagree) {
		return false, err
	}
	return true, nil // It is asked again before anything is done.
}

// isMisplaced reports whether r holds what belongs into the other directory, because an earlier manager had none. The
// next change then writes both.
func (j *journal) isMisplaced(r volumeRecord, dir recordDir) bool {
	if j.runtime == j.state {
		return false
	}
	return dir == j.runtime && r.Attachment != nil || dir == j.state && (r.Staging != nil || len(r.Pods) > 0)
}

// afterBoot returns what a record of that boot says now. After another boot no mount is left and the names of devices
// mean nothing. The directories of mounts are left, so that set-ups and stagings stay on record, uncertain: to tear down
// what is not there succeeds and removes them.
func (r volumeRecord) afterBoot(bootID string) volumeRecord {
	if r.BootID == bootID {
		return r
	}
	r.BootID = bootID
	if r.Attachment != nil {
		r.Attachment = &attachmentRecord{Node: r.Attachment.Node}
	}
	if r.Staging != nil {
		r.Staging = &stagingRecord{Path: r.Staging.Path, SELinux: r.Staging.SELinux}
	}
	for uid, p := range r.Pods {
		next := *p
		next.Mount, next.Settled = mountRecord{}, nil
		r.Pods[uid] = &next
	}
	return r
}

// merge joins the record of a volume's mounts and that of its attachment. Where both tell of the same, a counts.
func merge(a, b volumeRecord) volumeRecord {
	if a.Volume == "" {
		return b
	}
	if a.Attachment == nil {
		a.Attachment = b.Attachment
	}
	if a.Staging == nil {
		a.Staging = b.Staging
	}
	pods := maps.Clone(b.Pods)
	if pods == nil {
		return a
	}
	maps.Copy(pods, a.Pods)
	a.Pods = pods
	return a
}
