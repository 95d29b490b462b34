package mounttest

import (
	"bytes"
	"encoding/binary"
	"maps"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// fusePollName is a file that is found by its name and listed nowhere.
const fusePollName = ".mounttest-poll"

// fuseRoot is the number of the root, by the protocol.
const fuseRoot = 1

// fuseNode is a file, a directory or a symbolic link. It keeps its number after it was removed.
type fuseNode struct {
	id       uint64
	parent   *fuseNode // nil for the root
	name     string
	mode     uint32
	uid, gid uint32
	data     []byte
	children map[string]*fuseNode
}

// fuseTree is all nodes by number.
type fuseTree struct {
	nodes map[uint64]*fuseNode
	poll  *fuseNode
}

func newFUSETree(files map[string]string) fuseTree {
	t := fuseTree{nodes: map[uint64]*fuseNode{}}
	t.add(nil, "", unix.S_IFDIR|0o755)
	t.poll = t.add(nil, fusePollName, unix.S_IFREG|0o644)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		t.put(name, files[name])
	}
	return t
}

func (t *fuseTree) add(parent *fuseNode, name string, mode uint32) *fuseNode {
	n := &fuseNode{id: uint64(len(t.nodes) + 1), parent: parent, name: name, mode: mode}
	if mode&unix.S_IFMT == unix.S_IFDIR {
		n.children = map[string]*fuseNode{}
	}
	if parent != nil {
		parent.children[name] = n
	}
	t.nodes[n.id] = n
	return n
}

// put writes a file and makes what is missing above it; a name that ends in a slash is a directory.
func (t *fuseTree) put(name, content string) {
	n := t.nodes[fuseRoot]
	elements := strings.Split(strings.TrimSuffix(name, "/"), "/")
	for i, element := range elements {
		mode := uint32(unix.S_IFDIR | 0o755)
		if i == len(elements)-1 && !strings.HasSuffix(name, "/") {
			mode = unix.S_IFREG | 0o644
		}
		next := n.children[element]
		if next == nil {
			next = t.add(n, element, mode)
		}
		n = next
	}
	n.data = []byte(content)
}

// find returns what is at a path that is relative to the root, or nil.
func (t *fuseTree) find(name string) *fuseNode {
	n := t.nodes[fuseRoot]
	for element := range strings.SplitSeq(name, "/") {
		if element == "." || element == "" {
			continue
		}
		if n = n.children[element]; n == nil {
			return nil
		}
	}
	return n
}

func (n *fuseNode) path() string {
	switch {
	case n.parent == nil:
		return "."
	case n.parent.parent == nil:
		return n.name
	}
	return n.parent.path() + "/" + n.name
}

// pathOf is the path that a request is about.
func (t *fuseTree) pathOf(r fuseRequest) string {
	n := t.nodes[r.node]
	if n == nil {
		return ""
	}
	offset, named := fuseNames[r.op]
	if !named {
		return n.path()
	}
	name, _ := r.name(offset)
	return strings.TrimPrefix(n.path()+"/"+name, "./")
}

// fuseNames says where the name lies in requests that are about a name in a directory.
var fuseNames = map[FUSEOp]int{
	FUSELookup: 0, FUSEMkdir: 8, FUSECreate: 16, FUSEUnlink: 0, FUSERmdir: 0, FUSESymlink: 0, FUSERename: 8,
}

// name reads a name that ends in a NUL, and returns what follows it.
func (r fuseRequest) name(offset int) (name string, rest []byte) {
	if len(r.body) < offset {
		return "", nil
	}
	before, after, _ := bytes.Cut(r.body[offset:], []byte{0})
	return string(before), after
}

func (r fuseRequest) u32(at int) uint32 { return binary.NativeEndian.Uint32(r.body[at:]) }
func (r fuseRequest) u64(at int) uint64 { return binary.NativeEndian.Uint64(r.body[at:]) }

// fuseCalls are the operations that are there. What is missing is ENOSYS, which the kernel remembers.
var fuseCalls = map[FUSEOp]func(*fuseTree, *fuseNode, fuseRequest) ([]byte, syscall.Errno){
	FUSELookup: (*fuseTree).lookup, FUSEGetattr: (*fuseTree).getattr, FUSESetattr: (*fuseTree).setattr,
	FUSEReadlink: (*fuseTree).readlink, FUSESymlink: (*fuseTree).symlink, FUSEMkdir: (*fuseTree).mkdir,
	FUSEUnlink: (*fuseTree).unlink, FUSERmdir: (*fuseTree).rmdir, FUSERename: (*fuseTree).rename,
	FUSEOpen: (*fuseTree).open, FUSERead: (*fuseTree).read, FUSEWrite: (*fuseTree).write,
	FUSEStatfs: (*fuseTree).statfs, FUSEFsync: (*fuseTree).nothing, FUSEOpendir: (*fuseTree).open,
	FUSEReaddir: (*fuseTree).readdir, FUSECreate: (*fuseTree).create, fuseInit: (*fuseTree).init,
	fuseRelease: (*fuseTree).nothing, fuseReleasedir: (*fuseTree).nothing, fuseDestroy: (*fuseTree).nothing,
}

func (t *fuseTree) do(r fuseRequest) ([]byte, syscall.Errno) {
	call, ok := fuseCalls[r.op]
	if !ok {
		return nil, unix.ENOSYS
	}
	n := t.nodes[r.node]
	if n == nil && r.op != fuseInit && r.op != fuseDestroy {
		return nil, unix.ESTALE
	}
	return call(t, n, r)
}

// init answers in version 7.31: struct fuse_init_out.
func (t *fuseTree) init(*fuseNode, fuseRequest) ([]byte, syscall.Errno) {
	var w fuseWriter
	w.u32(7, 31, 0, 0)
	w.u16(0, 0)
	w.u32(fuseMaxWrite, 1)
	w.bytes = append(w.bytes, make([]byte, 36)...)
	return w.bytes, 0
}

func (t *fuseTree) nothing(*fuseNode, fuseRequest) ([]byte, syscall.Errno) { return nil, 0 }

// attr writes struct fuse_attr.
func (w *fuseWriter) attr(n *fuseNode) {
	const block = 512
	size := uint64(len(n.data))
	w.u64(n.id, size, (size+block-1)/block, 0, 0, 0)
	w.u32(0, 0, 0, n.mode, 1, n.uid, n.gid, 0, 4096, 0)
}

// entry writes struct fuse_entry_out, which the kernel is not to remember.
func (w *fuseWriter) entry(n *fuseNode) {
	w.u64(n.id, 0, 0, 0)
	w.u32(0, 0)
	w.attr(n)
}

// opened writes struct fuse_open_out: reads and writes go past the page cache.
func (w *fuseWriter) opened() {
	const directIO = 1
	w.u64(0)
	w.u32(directIO, 0)
}

func (t *fuseTree) lookup(dir *fuseNode, r fuseRequest) ([]byte, syscall.Errno) {
	name, _ := r.name(0)
	n := dir.children[name]
	if dir.id == fuseRoot && name == fusePollName {
		n = t.poll
	}
	if n == nil {
		return nil, unix.ENOENT
	}
	var w fuseWriter
	w.entry(n)
	return w.bytes, 0
}

func (t *fuseTree) getattr(n *fuseNode, _ fuseRequest) ([]byte, syscall.Errno) {
	var w fuseWriter
	w.u64(0)
	w.u32(0, 0)
	w.attr(n)
	return w.bytes, 0
}

// setattr reads struct fuse_setattr_in.
func (t *fuseTree) setattr(n *fuseNode, r fuseRequest) ([]byte, syscall.Errno) {
	const mode, uid, gid, size = 1, 2, 4, 8
	valid := r.u32(0)
	if valid&mode != 0 {
		n.mode = n.mode&unix.S_IFMT | r.u32(68)&^unix.S_IFMT
	}
	if valid&uid != 0 {
		n.uid = r.u32(76)
	}
	if valid&gid != 0 {
		n.gid = r.u32(80)
	}
	if valid&size != 0 {
		n.resize(r.u64(16))
	}
	return t.getattr(n, r)
}

// fuseMaxFile bounds a file.
const fuseMaxFile = 1 << 24

func (n *fuseNode) resize(size uint64) {
	size = min(size, fuseMaxFile)
	data := make([]byte, size)
	copy(data, n.data)
	n.data = data
}

func (t *fuseTree) readlink(n *fuseNode, _ fuseRequest) ([]byte, syscall.Errno) { return n.data, 0 }

func (t *fuseTree) symlink(dir *fuseNode, r fuseRequest) ([]byte, syscall.Errno) {
	name, rest := r.name(0)
	to, _, _ := bytes.Cut(rest, []byte{0})
	return t.make(dir, name, r, unix.S_IFLNK|0o777, to)
}

func (t *fuseTree) mkdir(dir *fuseNode, r fuseRequest) ([]byte, syscall.Errno) {
	name, _ := r.name(8)
	return t.make(dir, name, r, unix.S_IFDIR|r.u32(0)&0o7777, nil)
}

func (t *fuseTree) create(dir *fuseNode, r fuseRequest) ([]byte, syscall.Errno) {
	name, _ := r.name(16)
	body, errno := t.make(dir, name, r, unix.S_IFREG|r.u32(4)&0o7777, nil)
	w := fuseWriter{body}
	w.opened()
	return w.bytes, errno
}

func (t *fuseTree) make(dir *fuseNode, name string, r fuseRequest, mode uint32, data []byte) ([]byte, syscall.Errno) {
	if dir.children[name] != nil {
		return nil, unix.EEXIST
	}
	n := t.add(dir, name, mode)
	n.uid, n.gid, n.data = r.uid, r.gid, bytes.Clone(data)
	var w fuseWriter
	w.entry(n)
	return w.bytes, 0
}

func (t *fuseTree) unlink(dir *fuseNode, r fuseRequest) ([]byte, syscall.Errno) {
	name, _ := r.name(0)
	if dir.children[name] == nil {
		return nil, unix.ENOENT
	}
	delete(dir.children, name)
	return nil, 0
}

func (t *fuseTree) rmdir(dir *fuseNode, r fuseRequest) ([]byte, syscall.Errno) {
	name, _ := r.name(0)
	if n := dir.children[name]; n != nil && len(n.children) > 0 {
		return nil, unix.ENOTEMPTY
	}
	return t.unlink(dir, r)
}

func (t *fuseTree) rename(dir *fuseNode, r fuseRequest) ([]byte, syscall.Errno) {
	from, rest := r.name(8)
	to, _, _ := bytes.Cut(rest, []byte{0})
	into, n := t.nodes[r.u64(0)], dir.children[from]
	if into == nil || n == nil {
		return nil, unix.ENOENT
	}
	if old := into.children[string(to)]; old != nil && len(old.children) > 0 {
		return nil, unix.ENOTEMPTY
	}
	delete(dir.children, from)
	n.parent, n.name = into, string(to)
	into.children[n.name] = n
	return nil, 0
}

func (t *fuseTree) open(*fuseNode, fuseRequest) ([]byte, syscall.Errno) {
	var w fuseWriter
	w.opened()
	return w.bytes, 0
}

// read reads struct fuse_read_in.
func (t *fuseTree) read(n *fuseNode, r fuseRequest) ([]byte, syscall.Errno) {
	offset, size := r.u64(8), uint64(r.u32(16))
	start := min(offset, uint64(len(n.data)))
	return n.data[start:min(start+size, uint64(len(n.data)))], 0
}

// write reads struct fuse_write_in and what follows it.
func (t *fuseTree) write(n *fuseNode, r fuseRequest) ([]byte, syscall.Errno) {
	const header = 40
	offset, data := r.u64(8), r.body[header:]
	end := offset + uint64(len(data))
	if end > fuseMaxFile {
		return nil, unix.EFBIG
	}
	if end > uint64(len(n.data)) {
		n.resize(end)
	}
	copy(n.data[offset:], data)
	var w fuseWriter
	w.u32(uint32(len(data)), 0)
	return w.bytes, 0
}

// statfs writes struct fuse_kstatfs: a quarter is used.
func (t *fuseTree) statfs(*fuseNode, fuseRequest) ([]byte, syscall.Errno) {
	var w fuseWriter
	w.u64(1024, 768, 768, 1024, 768)
	w.u32(4096, 255, 4096, 0, 0, 0, 0, 0, 0, 0)
	return w.bytes, 0
}

// readdir reads struct fuse_read_in and writes as many struct fuse_dirent as there is room for.
func (t *fuseTree) readdir(n *fuseNode, r fuseRequest) ([]byte, syscall.Errno) {
	offset, size := r.u64(8), int(r.u32(16))
	names := append([]string{".", ".."}, slices.Sorted(maps.Keys(n.children))...)
	var w fuseWriter
	for i := int(min(offset, uint64(len(names)))); i < len(names); i++ {
		const header, align = 24, 8
		length := (header + len(names[i]) + align - 1) / align * align
		if len(w.bytes)+length > size {
			break
		}
		id, mode := n.id, uint32(unix.S_IFDIR)
		if child := n.children[names[i]]; child != nil {
			id, mode = child.id, child.mode
		}
		start := len(w.bytes)
		w.u64(id, uint64(i+1))
		w.u32(uint32(len(names[i])), mode&unix.S_IFMT>>12)
		w.bytes = append(w.bytes, names[i]...)
		w.bytes = append(w.bytes, make([]byte, start+length-len(w.bytes))...)
	}
	return w.bytes, 0
}
