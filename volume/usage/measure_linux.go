package usage

import (
	"context"

	"golang.org/x/sys/unix"
)

// measure answers Measure: by the kernel's count for the project of root when that is known to be the tree's, and
// otherwise by a walk, after which it may be known.
func (m *Measurer) measure(ctx context.Context, root string) (Usage, error) {
	before, id, counted := m.countOf(root)
	if counted && m.useConfirmed(id) {
		return before, nil
	}
	used, err := walkTree(ctx, root)
	if err != nil || !counted {
		return used, err
	}
	after, again, counted := m.countOf(root)
	if counted && again == id && used.confirmedBy(before, after) {
		m.confirm(id)
	}
	return used, nil
}

// countOf returns the kernel's count for the project of root, if there is one that may be that of the tree.
func (m *Measurer) countOf(root string) (Usage, projectRoot, bool) {
	if m.walksOnly {
		return Usage{}, projectRoot{}, false
	}
	const flags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW
	fd, err := openAt(unix.AT_FDCWD, root, flags)
	if err != nil {
		return Usage{}, projectRoot{}, false // the walk says why
	}
	defer closeFD(fd)
	own := projectOf(fd)
	if own.id == 0 || !candidate(own, projectAbove(fd)) {
		return Usage{}, projectRoot{}, false
	}
	var st unix.Stat_t
	if err := retry(func() error { return unix.Fstat(fd, &st) }); err != nil {
		return Usage{}, projectRoot{}, false
	}
	count, ok := projectUsage(fd, own.id)
	return count, projectRoot{inode: inode{dev: st.Dev, ino: st.Ino}, project: own.id}, ok
}

// projectAbove asks for the project of the directory above an open one. That of the directory above a mount is one of
// another filesystem and means nothing; it is taken for the same all the same, which costs a walk.
func projectAbove(fd int) project {
	up, err := openAt(fd, "..", unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return project{}
	}
	defer closeFD(up)
	return projectOf(up)
}

func (m *Measurer) useConfirmed(root projectRoot) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.confirmed.use(root)
}

func (m *Measurer) confirm(root projectRoot) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.confirmed.confirm(root)
}
