package scheduling

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// pod is a pod that the store has on a node, or that is reserved there. It is never a pod that has ended.
type pod struct {
	key    podKey
	node   string
	slot   int32
	claims []types.NamespacedName
	counts []attached // of claims
	disks  []v1.Volume
	stored bool // the store has it on the node
}

func keyOfPod(p *v1.Pod) podKey { return podKey{name: store.NameOf(p), uid: p.UID} }

// claimsOfPod returns the claims of a pod, each once.
func claimsOfPod(p *v1.Pod) []types.NamespacedName {
	claims := volume.ClaimsOfPod(p)
	seen := claims[:0]
	for _, name := range claims {
		if !slices.Contains(seen, name) {
			seen = append(seen, name)
		}
	}
	return seen
}

// refreshPod updates a pod from its last version in the mirror. It returns the pod that has left its node, nil for
// none, and the reservation that ended because its pod is not on its node.
func (x *index) refreshPod(name types.NamespacedName, p *v1.Pod) (left *pod, released *Reservation) {
	placed := p != nil && p.Spec.NodeName != "" && !volume.IsPodTerminated(p)
	old := x.pods[name]
	if old != nil && placed && old.stored && old.is(p) {
		return nil, nil
	}
	if old != nil && (placed || old.stored) {
		x.removePod(old)
		if old.stored {
			left = old
		}
	}
	if placed {
		x.addPod(p, p.Spec.NodeName).stored = true
	}
	return left, x.endReservationOf(name, p)
}

// is reports whether a version of the pod has the same node and volumes.
func (p *pod) is(now *v1.Pod) bool {
	return p.key.uid == now.UID && p.node == now.Spec.NodeName &&
		slices.Equal(p.claims, claimsOfPod(now)) && equality.Semantic.DeepEqual(p.disks, disksOf(now))
}

// addPod adds a pod to a node.
func (x *index) addPod(p *v1.Pod, node string) *pod {
	added := &pod{key: keyOfPod(p), node: node, slot: x.nodes.acquire(node), claims: claimsOfPod(p), disks: disksOf(p)}
	x.pods[added.key.name] = added
	x.nodes.entries[added.slot].pods[added.key] = added
	for _, claim := range added.claims {
		if x.podsOf[claim] == nil {
			x.podsOf[claim] = map[podKey]*pod{}
		}
		x.podsOf[claim][added.key] = added
	}
	x.countPod(added)
	return added
}

// removePod undoes addPod.
func (x *index) removePod(p *pod) {
	x.discountPod(p)
	for _, claim := range p.claims {
		delete(x.podsOf[claim], p.key)
		if len(x.podsOf[claim]) == 0 {
			delete(x.podsOf, claim)
		}
	}
	delete(x.nodes.entries[p.slot].pods, p.key)
	delete(x.pods, p.key.name)
	x.nodes.release(p.node)
}

func (x *index) countPod(p *pod) {
	for _, claim := range p.claims {
		if a := x.attachedOf(claim); a.driver != nil {
			p.counts = append(p.counts, a)
			a.driver.add(a.handle, p.slot)
		}
	}
}

func (x *index) discountPod(p *pod) {
	for _, a := range p.counts {
		a.driver.remove(a.handle, p.slot)
	}
	p.counts = p.counts[:0]
}

// recountClaim counts the pods that use a claim again.
func (x *index) recountClaim(name types.NamespacedName) {
	for _, p := range x.podsOf[name] {
		x.discountPod(p)
		x.countPod(p)
	}
}

// attachment is the last version of a VolumeAttachment.
type attachment struct {
	object  *storagev1.VolumeAttachment
	slot    int32
	counted attached
}

// volumeOf returns the name of the attached volume, "" if it has none.
func (a *attachment) volumeOf() string {
	if name := a.object.Spec.Source.PersistentVolumeName; name != nil {
		return *name
	}
	return ""
}

// refreshAttachment updates an attachment from its last version in the mirror. It returns the old version if that is gone,
// or was of another volume or node.
func (x *index) refreshAttachment(name string, at *storagev1.VolumeAttachment) (gone *attachment) {
	old := x.attachments[name]
	if old != nil {
		old.discount()
		unlink(x.attachmentsOf, old.volumeOf(), name)
		x.nodes.release(old.object.Spec.NodeName)
		delete(x.attachments, name)
	}
	if at == nil {
		return old
	}
	now := &attachment{object: at, slot: x.nodes.acquire(at.Spec.NodeName)}
	x.attachments[name] = now
	link(x.attachmentsOf, now.volumeOf(), name)
	x.recountAttachment(name)
	if old != nil && (old.object.Spec.NodeName != at.Spec.NodeName || old.volumeOf() != now.volumeOf()) {
		return old
	}
	return nil
}

func (a *attachment) discount() {
	if a.counted.driver != nil {
		a.counted.driver.remove(a.counted.handle, a.slot)
	}
	a.counted = attached{}
}

// recountAttachment counts an attachment again. An attachment without attacher, or of an unknown volume, does not
// count.
func (x *index) recountAttachment(name string) {
	a := x.attachments[name]
	a.discount()
	v := x.volumes[a.volumeOf()]
	if v == nil || a.object.Spec.Attacher == "" || v.attached.driver == nil {
		return
	}
	a.counted = v.attached
	a.counted.driver.add(a.counted.handle, a.slot)
}

// disksOf returns copies of the inline disks of a pod that two pods on one node must not both use.
func disksOf(p *v1.Pod) []v1.Volume {
	var disks []v1.Volume
	for _, v := range p.Spec.Volumes {
		if v.GCEPersistentDisk != nil || v.AWSElasticBlockStore != nil || v.RBD != nil || v.ISCSI != nil {
			disks = append(disks, *v.DeepCopy())
		}
	}
	return disks
}

// conflict reports whether two disks are the same and at least one user can write.
func conflict(a, b v1.Volume) bool {
	switch {
	case a.GCEPersistentDisk != nil && b.GCEPersistentDisk != nil:
		return a.GCEPersistentDisk.PDName == b.GCEPersistentDisk.PDName && (!a.GCEPersistentDisk.ReadOnly || !b.GCEPersistentDisk.ReadOnly)
	case a.AWSElasticBlockStore != nil && b.AWSElasticBlockStore != nil:
		return a.AWSElasticBlockStore.VolumeID == b.AWSElasticBlockStore.VolumeID
	case a.ISCSI != nil && b.ISCSI != nil:
		return a.ISCSI.IQN == b.ISCSI.IQN && (!a.ISCSI.ReadOnly || !b.ISCSI.ReadOnly)
	case a.RBD != nil && b.RBD != nil:
		return sameImage(a.RBD, b.RBD) && (!a.RBD.ReadOnly || !b.RBD.ReadOnly)
	}
	return false
}

func sameImage(a, b *v1.RBDVolumeSource) bool {
	return a.RBDPool == b.RBDPool && a.RBDImage == b.RBDImage &&
		slices.ContainsFunc(a.CephMonitors, func(m string) bool { return slices.Contains(b.CephMonitors, m) })
}

// diskConflicts returns the pods of a node that use a disk which a pod cannot share with them.
func (x *index) diskConflicts(slot int32, disks []v1.Volume, except podKey) []types.NamespacedName {
	var pods []types.NamespacedName
	for key, p := range x.nodes.entries[slot].pods {
		if key != except && slices.ContainsFunc(p.disks, func(theirs v1.Volume) bool {
			return slices.ContainsFunc(disks, func(ours v1.Volume) bool { return conflict(ours, theirs) })
		}) {
			pods = append(pods, key.name)
		}
	}
	return pods
}
