package volumemanager

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"runtime"
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/cache"
	"github.com/volumekit/volumekit/internal/record"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

// recover locks the directories of records, reads what an earlier manager left, and makes it the actual state: every
// part of it uncertain. It asks no plugin to do anything and touches no mount.
func (m *Manager) recover(ctx context.Context) error {
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
	m.dirty.AddAll(names)
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
	}
	return nil
}

// prepare gives the journal what it needs of the manager.
func (j *journal) prepare(m *Manager) {
	j.mounts, _ = m.options.Mounter.(MountTable)
	if _, ok := m.options.Mounter.(kernelMounts); ok {
		j.learned = func(path string) mountRecord { return m.mounts.get(path).record() }
	}
	j.logger = m.options.Logger
	j.root.path = rootOf(m.plugins.Host(), m.options)
}

// rootOf returns the directory under which all volumes live; empty when it is one of those that hold the records, which are
// locked in any case.
func rootOf(host volume.VolumeHost, o Options) string {
	root := filepath.Dir(filepath.Clean(host.GetPodsDir()))
	if root == filepath.Clean(o.RuntimeDir) || root == filepath.Clean(o.StateDir) {
		return ""
	}
	return root
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
	if err := j.root.take(); err != nil {
		return errors.Join(err, j.runtime.Close(), j.closeState())
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
	var damaged []DamagedRecord
	all, stale := make(map[v1.UniqueVolumeName]foundVolume), make(map[v1.UniqueVolumeName]bool)
	for _, dir := range slices.Compact([]recordDir{j.runtime, j.state}) {
		records, bad, err := dir.Load()
		if err != nil {
			return nil, nil, err
		}
		for i, d := range decodeRecords(records, host) {
			if d.err != nil {
				bad = append(bad, dir.Quarantine(records[i].Key, d.err))
				continue
			}
			r, name := d.record, d.record.Volume
			all[name] = foundVolume{record: merge(all[name].record, r.afterBoot(j.bootID)), spec: d.spec}
			stale[name] = stale[name] || j.isMisplaced(r, dir)
		}
		for _, d := range bad {
			damaged = append(damaged, DamagedRecord{Path: d.Path, Err: d.Err})
		}
	}
	found := make([]foundVolume, 0, len(all))
	for _, name := range slices.Sorted(maps.Keys(all)) {
		found = append(found, all[name])
		j.enter(journalEntry{record: all[name].record, stale: stale[name]})
	}
	return found, damaged, nil
}

// decodedRecord is a record, or what is wrong with it.
type decodedRecord struct {
	foundVolume
	err error
}

// decodeRecords decodes records on every processor, in their order.
func decodeRecords(records []record.Record, host volume.VolumeHost) []decodedRecord {
	decoded := make([]decodedRecord, len(records))
	share := len(records)/runtime.GOMAXPROCS(0) + 1
	var wg sync.WaitGroup
	for from := 0; from < len(records); from += share {
		wg.Go(func() {
			for i := from; i < min(from+share, len(records)); i++ {
				decoded[i].foundVolume, decoded[i].err = decodeRecord(records[i].Key, records[i].Payload, host)
			}
		})
	}
	wg.Wait()
	return decoded
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
		p.Mount = mountRecord{}
		r.Pods[uid] = p
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
