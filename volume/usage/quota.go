package usage

// maxUses is how many times the kernel's count for a project replaces a walk before a walk must confirm it again.
const maxUses = 64

// maxConfirmed limits the number of confirmed trees in memory.
const maxConfirmed = 1024

// project is the quota project of a directory.
type project struct {
	id       uint32 // zero when there is none
	inherits bool   // whether new files in the directory get the same project
}

// projectRoot identifies the root of a tree together with its project.
type projectRoot struct {
	inode

	project uint32
}

// inode identifies a file on this machine.
type inode struct{ dev, ino uint64 }

// candidate reports whether the count of root's project may be that of the tree below root. It is not if new files there get
// another project, or if the directory above has the same project: then the count is that of a larger tree.
func candidate(root, above project) bool {
	return root.id != 0 && root.inherits && root.id != above.id
}

// confirmedBy reports whether a walk has the same result as the kernel's counts before and after it. A tree that changes meanwhile
// is not confirmed: two errors might hide each other.
func (u Usage) confirmedBy(before, after Usage) bool {
	u.ByQuota = true
	return u == before && u == after
}

// confirmedRoots remembers for which trees the kernel's count was found to be that of the tree. The zero value trusts nothing. It
// is guarded by Measurer.mu.
type confirmedRoots struct {
	uses map[projectRoot]int // how many more times
}

// use reports whether the count for root may be believed once more.
func (t *confirmedRoots) use(root projectRoot) bool {
	if t.uses[root] == 0 {
		delete(t.uses, root)
		return false
	}
	t.uses[root]--
	return true
}

// confirm makes the next maxUses counts for root be believed.
func (t *confirmedRoots) confirm(root projectRoot) {
	if t.uses == nil {
		t.uses = map[projectRoot]int{}
	}
	if _, known := t.uses[root]; !known && len(t.uses) >= maxConfirmed {
		for other := range t.uses { // any one: its next measurement is a walk
			delete(t.uses, other)
			break
		}
	}
	t.uses[root] = maxUses
}
