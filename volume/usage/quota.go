package usage

// quotaTrust is how many times the kernel's count for a project answers in place of a walk before a walk has to confirm
// it again.
const quotaTrust = 64

// maxTrusted bounds how many trees are remembered as confirmed.
const maxTrusted = 1024

// project is what the filesystem says of the project of a directory.
type project struct {
	id       uint32 // zero when there is none
	inherits bool   // whether what is made in the directory gets the same project
}

// projectRoot identifies the root of a tree together with its project.
type projectRoot struct {
	inode

	project uint32
}

// inode identifies a file on this machine.
type inode struct{ dev, ino uint64 }

// candidate reports whether the count of root's project may be that of the tree below root. It is not when files made
// there get another project, nor when the directory above has the same project: then the count is that of a larger tree.
func candidate(root, above project) bool {
	return root.id != 0 && root.inherits && root.id != above.id
}

// confirmedBy reports whether a walk has found exactly what the kernel has counted before and after it. A tree that
// changes meanwhile is not confirmed: two errors might hide each other.
func (u Usage) confirmedBy(before, after Usage) bool {
	u.ByQuota = true
	return u == before && u == after
}

// trust remembers for which trees the kernel's count was found to be that of the tree. The zero value trusts nothing. It
// is guarded by Meter.mu.
type trust struct {
	left map[projectRoot]int // how many more times
}

// use reports whether the count for root may be believed once more.
func (t *trust) use(root projectRoot) bool {
	if t.left[root] == 0 {
		delete(t.left, root)
		return false
	}
	t.left[root]--
	return true
}

// confirm makes the next quotaTrust counts for root be believed.
func (t *trust) confirm(root projectRoot) {
	if t.left == nil {
		t.left = map[projectRoot]int{}
	}
	if _, known := t.left[root]; !known && len(t.left) >= maxTrusted {
		for other := range t.left { // whichever: it costs that one a walk
			delete(t.left, other)
			break
		}
	}
	t.left[root] = quotaTrust
}
