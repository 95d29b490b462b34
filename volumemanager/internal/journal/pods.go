package journal

import (
	"bytes"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/podvolume"
)

// The record of a volume holds its attachment, its staging and its first pods. Each further pod has a record of its own, and so
// has a pod with another inner name of the volume: its path has that name. A change for one pod therefore writes the same
// number of bytes however many pods there are.

// podsInRecord is how many pods the record of a volume holds. A record of an earlier version may hold more.
const podsInRecord = 8

// ownKey is the key of a pod's own record. No name of a volume has an empty element, and thus no two records share a key.
func ownKey(name v1.UniqueVolumeName, uid types.UID) string { return string(name) + "//" + string(uid) }

// keyOf returns the key of the record of a volume, or of a pod's own record.
func keyOf(h podvolume.Key) string {
	if h.Pod == "" {
		return string(h.Volume)
	}
	return ownKey(h.Volume, types.UID(h.Pod))
}

// ownPod returns the pod if r is a pod's own record with that key; empty if r is the record of the volume.
func (r Record) ownPod(key string) types.UID {
	if key == string(r.Volume) || len(r.Pods) != 1 || r.Attachment != nil || r.Staging != nil {
		return ""
	}
	for uid := range r.Pods {
		if key == ownKey(r.Volume, uid) {
			return uid
		}
	}
	return ""
}

// enterOwn enters a pod's own record, and returns the volume with that pod. Only the caller uses the map of the volume's
// pods.
func (j *Journal) enterOwn(l loadedRecord, of Found) Found {
	r := l.Record.afterBoot(j.bootID).withSpecOf(of.Record)
	j.enter(entry{at: podvolume.Key{Volume: r.Volume, Pod: volume.UniquePodName(l.own)}, record: r})
	if whole := j.ofVolume(r.Volume); whole.record.Pods[l.own] != nil {
		whole.record = whole.record.clone()
		j.withoutOwn(&whole.record)
		whole.stale = true
		j.enter(whole)
	}
	if of.Record.Volume == "" {
		l.Record = r.clone()
		return l.Found
	}
	if of.Record.Pods == nil {
		of.Record.Pods = make(map[types.UID]*SetUp)
	}
	of.Record.Pods[l.own] = r.Pods[l.own]
	if of.Spec != nil && l.Spec.Name() != of.Spec.Name() {
		if of.specs == nil {
			of.specs = make(map[types.UID]*volume.Spec)
		}
		of.specs[l.own] = l.Spec
	}
	of.Unproven = of.Unproven || l.Unproven
	return of
}

// withSpecOf returns a pod's own record for a volume. If the volume's record has another spec, the pod's set-up is no longer
// settled and is done again.
func (r Record) withSpecOf(v Record) Record {
	if v.Volume == "" || bytes.Equal(r.Spec, v.Spec) {
		return r
	}
	r = r.clone()
	for uid, p := range r.Pods {
		next := *p
		next.Settled = nil
		r.Pods[uid] = &next
	}
	return r
}
