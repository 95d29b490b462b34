package fake

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/volumekit/volumekit/mount"
)

// propagation says where else the mounts and unmounts on a mount appear, in the terms of mount_namespaces(7): in its peer
// group, and in the slaves of that. A mount may be in a group and be the slave of another; all peers have one master.
type propagation struct {
	group      uint64 // 0 unless the mount is shared
	master     uint64 // the group whose slave it is, or 0
	unbindable bool
}

// fields are the optional fields of the mount table.
func (p propagation) fields() (fields []string) {
	if p.group != 0 {
		fields = append(fields, fmt.Sprintf("shared:%d", p.group))
	}
	if p.master != 0 {
		fields = append(fields, fmt.Sprintf("master:%d", p.master))
	}
	if p.unbindable {
		fields = append(fields, "unbindable")
	}
	return fields
}

// propagate changes the propagation of a mount.
func (ns *namespace) propagate(mp *mounted, kind string) {
	if kind == "shared" {
		ns.share(mp)
		return
	}
	ns.leave(mp)
	if kind == "slave" {
		return
	}
	mp.master, mp.unbindable = 0, kind == "unbindable"
}

// share gives the mount a peer group unless it has one.
func (ns *namespace) share(mp *mounted) {
	mp.unbindable = false
	if mp.group == 0 {
		ns.lastGroup++
		mp.group = ns.lastGroup
	}
}

// leave takes the mount out of its peer group, whose slave it becomes. When it was the last there, its master takes over the
// slaves of the group.
func (ns *namespace) leave(mp *mounted) {
	left := mp.group
	if mp.group = 0; left == 0 {
		return
	}
	if slices.ContainsFunc(ns.mounts, func(other *mounted) bool { return other.group == left }) {
		mp.master = left
		return
	}
	for _, other := range ns.mounts {
		if other.master == left {
			other.master = mp.master
		}
	}
}

// propagateAll changes the propagation of a tree as the plan says: of its first mount, or of all.
func (ns *namespace) propagateAll(tree []*mounted, plan mount.Plan) {
	kind, below := strings.CutPrefix(plan.Propagation, "r")
	if !below && !plan.Recursive {
		tree = tree[:1]
	}
	for _, mp := range tree {
		ns.propagate(mp, kind)
	}
}

// receivers are the mounts that get what is mounted on mp, each after those from which it gets it.
func (ns *namespace) receivers(mp *mounted) (found []*mounted) {
	if mp.group == 0 {
		return nil
	}
	for groups := []uint64{mp.group}; len(groups) > 0; groups = groups[1:] {
		for _, other := range ns.mounts {
			if other.group == groups[0] && other != mp {
				found = append(found, other)
			}
		}
		for _, other := range ns.mounts {
			switch {
			case other.master != groups[0]:
			case other.group == 0:
				found = append(found, other)
			case !slices.Contains(groups, other.group):
				groups = append(groups, other.group)
			}
		}
	}
	return found
}

// attach puts a tree on a position, and copies of it on the same place of all that receive.
func (ns *namespace) attach(tree []*mounted, at position) {
	receivers := ns.receivers(at.mount)
	if at.mount.group != 0 {
		for _, mp := range tree {
			ns.share(mp)
		}
	}
	ns.put(tree, at)
	inGroup := map[uint64][]*mounted{at.mount.group: tree} // the first copy in each peer group of receivers
	for _, receiver := range receivers {
		if isWithin(at.rel, receiver.rootPath) {
			ns.put(ns.copyFor(receiver, inGroup), position{receiver, at.node, at.rel})
		}
	}
}

// copyFor makes the copy for a receiver: a peer of the one in its group, else a slave of the one in its master's, which is
// shared too when the receiver is.
func (ns *namespace) copyFor(receiver *mounted, inGroup map[uint64][]*mounted) []*mounted {
	if known := inGroup[receiver.group]; known != nil {
		return ns.copyTree(known)
	}
	copied := ns.copyTree(inGroup[ns.nearestMaster(receiver, inGroup)])
	for _, mp := range copied {
		mp.master, mp.group = mp.group, 0
		if receiver.group != 0 {
			ns.share(mp)
		}
	}
	if receiver.group != 0 {
		inGroup[receiver.group] = copied
	}
	return copied
}

// nearestMaster is the group from which the mount gets its copy: its master, or the master of that when the place cannot be
// seen in it, and so on.
func (ns *namespace) nearestMaster(mp *mounted, inGroup map[uint64][]*mounted) uint64 {
	group := mp.master
	for inGroup[group] == nil {
		i := slices.IndexFunc(ns.mounts, func(other *mounted) bool { return other.group == group })
		group = ns.mounts[i].master
	}
	return group
}

// copyTree copies mounts, of which each is on an earlier one but for the first. A copy is a peer of what is shared, and has the
// same master.
func (ns *namespace) copyTree(tree []*mounted) []*mounted {
	copies := make([]*mounted, len(tree))
	for i, mp := range tree {
		copied := *mp
		copied.id, copied.held, copied.options = ns.nextID(), 0, slices.Clone(mp.options)
		if i > 0 {
			copied.parent = copies[slices.Index(tree, mp.parent)]
		}
		copies[i] = &copied
	}
	return copies
}

// put adds a tree to the table. A mount that is at the position stays uppermost: it is then on the tree.
func (ns *namespace) put(tree []*mounted, at position) {
	top := tree[0]
	top.parent, top.point, top.pointPath = at.mount, at.node, at.rel
	if covering := ns.mountOn(at.mount, at.node); covering != nil {
		covering.parent, covering.point, covering.pointPath = top, top.root, top.rootPath
	}
	for _, mp := range tree {
		mp.path = path.Join(mp.parent.path, strings.TrimPrefix(mp.pointPath, mp.parent.rootPath))
	}
	ns.mounts = append(ns.mounts, tree...)
}

// mountOn returns the mount on a place of another one, or nil.
func (ns *namespace) mountOn(parent *mounted, point *inode) *mounted {
	i := slices.IndexFunc(ns.mounts, func(mp *mounted) bool { return mp.parent == parent && mp.point == point })
	if i < 0 {
		return nil
	}
	return ns.mounts[i]
}

// tree returns the mount and those below it, each after what it is on; of those below only what keep says.
func (ns *namespace) tree(top *mounted, keep func(*mounted) bool) []*mounted {
	tree := []*mounted{top}
	for i := 0; i < len(tree); i++ {
		for _, mp := range ns.mounts {
			if mp.parent == tree[i] && keep(mp) {
				tree = append(tree, mp)
			}
		}
	}
	return tree
}

func all(*mounted) bool { return true }

// unmountedWith returns what an unmount takes off: the mounts themselves, and the copies of them on all that receive. A copy
// stays when it bears a mount that stays, unless that covers it whole.
func (ns *namespace) unmountedWith(mounts []*mounted) []*mounted {
	gone := slices.Clone(mounts)
	for _, mp := range mounts {
		for _, receiver := range ns.receivers(mp.parent) {
			copied := ns.mountOn(receiver, mp.point)
			if copied != nil && !slices.Contains(gone, copied) {
				gone = append(gone, copied)
			}
		}
	}
	bears := func(mp *mounted) bool {
		return slices.ContainsFunc(ns.mounts, func(other *mounted) bool {
			return other.parent == mp && other.point != mp.root && ns.remainsIn(other, gone)
		})
	}
	for i := len(mounts); i < len(gone); i++ {
		if bears(gone[i]) {
			gone = slices.Delete(gone, i, i+1)
			i = len(mounts) - 1 // what bears this one stays, too
		}
	}
	return gone
}

// remainsIn reports whether the mount, or what covers it, stays when others have gone.
func (ns *namespace) remainsIn(mp *mounted, gone []*mounted) bool {
	if !slices.Contains(gone, mp) {
		return true
	}
	covering := ns.mountOn(mp, mp.root)
	return covering != nil && ns.remainsIn(covering, gone)
}

// detach takes mounts out of the table. What covered one of them is then on the place of that.
func (ns *namespace) detach(gone []*mounted) {
	isGone := func(mp *mounted) bool { return slices.Contains(gone, mp) }
	for _, mp := range gone {
		ns.propagate(mp, "private")
	}
	ns.mounts = slices.DeleteFunc(ns.mounts, isGone)
	for _, mp := range ns.mounts {
		for mp.parent != nil && isGone(mp.parent) {
			mp.parent, mp.point, mp.pointPath = mp.parent.parent, mp.parent.point, mp.parent.pointPath
		}
	}
}

// isWithin reports whether name is dir or lies below it.
func isWithin(name, dir string) bool {
	return name == dir || strings.HasPrefix(name, strings.TrimSuffix(dir, "/")+"/")
}
