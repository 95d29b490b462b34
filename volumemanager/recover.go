package volumemanager

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/cache"
	"github.com/volumekit/volumekit/internal/record"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

// recover locks the directories of records, reads what an earlier manager left, and makes it the actual state: every
// part of it uncertain. It asks no plugin to do anything and touches no mount.
func (m *Manager) recover() error {
	if m.journal == nil {
		return nil
	}
	if err := m.journal.open(m.options); err != nil {
		return err
	}
	found, damaged, err := m.journal.load(m.plugins.Host())
	if err != nil {
		return errors.Join(err, m.journal.close())
	}
	for _, d := range damaged {
		m.options.Logger.Error("a record cannot be used; what it stands for is not known and is left alone", "path", d.Path, "error", d.Err)
	}
	var names []v1.UniqueVolumeName
	for _, r := range found {
		if err := m.adopt(r); err != nil {
			return errors.Join(err, m.journal.close())
		}
		names = append(names, r.Volume)
	}
	m.mu.Lock()
	m.damaged = damaged
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
func (m *Manager) adopt(r volumeRecord) error {
	spec, err := r.spec()
	if err != nil {
		return err
	}
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

// open locks the directories. One that another manager has locked is an error that matches [volume.ErrInUse].
func (j *journal) open(o Options) (err error) {
	if j.bootID, err = j.disk.bootID(); err != nil {
		return err
	}
	if j.runtime, err = j.disk.openDir(o.RuntimeDir, record.Options{}); err != nil {
		return err
	}
	j.state = j.runtime
	if o.StateDir == "" {
		return nil
	}
	if j.state, err = j.disk.openDir(o.StateDir, record.Options{Sync: true}); err != nil {
		return errors.Join(err, j.runtime.Close())
	}
	return nil
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

// load reads all records and enters them into the journal. What cannot be used is moved aside. The order is that of the
// volumes' names.
func (j *journal) load(host volume.VolumeHost) ([]volumeRecord, []DamagedRecord, error) {
	var damaged []DamagedRecord
	all, stale := make(map[v1.UniqueVolumeName]volumeRecord), make(map[v1.UniqueVolumeName]bool)
	for _, dir := range slices.Compact([]recordDir{j.runtime, j.state}) {
		records, bad, err := dir.Load()
		if err != nil {
			return nil, nil, err
		}
		for _, raw := range records {
			r, err := decodeRecord(raw.Key, raw.Payload, host)
			if err != nil {
				bad = append(bad, dir.Quarantine(raw.Key, err))
				continue
			}
			all[r.Volume] = merge(all[r.Volume], r.afterBoot(j.bootID))
			stale[r.Volume] = stale[r.Volume] || j.isMisplaced(r, dir)
		}
		for _, d := range bad {
			damaged = append(damaged, DamagedRecord{Path: d.Path, Err: d.Err})
		}
	}
	found := make([]volumeRecord, 0, len(all))
	for _, name := range slices.Sorted(maps.Keys(all)) {
		found = append(found, all[name])
		j.enter(journalEntry{record: all[name], stale: stale[name]})
	}
	return found, damaged, nil
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
