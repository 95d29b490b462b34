package fake

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/volumekit/volumekit/mount"
)

func (ns *namespace) nextID() uint64 {
	ns.lastID++
	return ns.lastID
}

func (ns *namespace) newFilesystem(fsType, source string) *filesystem {
	ns.lastMinor++
	return &filesystem{minor: ns.lastMinor, fsType: fsType, source: source, root: newInode(fs.ModeDir | 0o755)}
}

// mount makes the planned mount. Public are the options for the filesystem that may be shown.
func (ns *namespace) mount(plan mount.Plan, public []string) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("mounting at %q: %w", plan.Target, err)
		}
	}()
	if plan.Remount {
		return ns.remount(plan)
	}
	if at, err := ns.locate(plan.Target); plan.Exclusive && err == nil && at.isMountPoint() {
		return mount.ErrMounted
	}
	made, err := ns.makeParents(path.Dir(plan.Target))
	defer func() {
		if err != nil {
			unmake(made)
		}
	}()
	if err != nil {
		return err
	}
	target, err := ns.parent(plan.Target, walk{strict: true})
	if err != nil {
		return err
	}
	shown, err := ns.shown(plan, public)
	if err != nil {
		return err
	}
	if err := ns.checkIDMappings(shown, plan); err != nil {
		return err
	}
	at, err := ns.makeTarget(plan.Target, target, shown.node.mode.Type())
	if err != nil {
		return err
	}
	tree := ns.bound(shown, plan)
	ns.attach(tree, at)
	ns.propagateAll(tree, plan) // once more: what is put on a shared mount has become shared
	return nil
}

// makeParents makes the directory name, and those above it, where there is none, and returns what it made.
func (ns *namespace) makeParents(name string) (made []entry, err error) {
	if _, err := ns.resolve(name, walk{strict: true}); !errors.Is(err, syscall.ENOENT) {
		return nil, err
	}
	if made, err = ns.makeParents(path.Dir(name)); err != nil {
		return made, err
	}
	e, err := ns.parent(name, walk{strict: true})
	if err != nil {
		return made, err
	}
	if _, err := e.create(fs.ModeDir | 0o750); err != nil {
		return made, fmt.Errorf("making %q: %w", name, err)
	}
	return append(made, e), nil
}

// unmake removes directories that were made and that nothing else has used since.
func unmake(made []entry) {
	for _, e := range made {
		delete(e.dir.node.children, e.base)
	}
}

// makeTarget finds the mount point, and makes it when there is none, for something of the given type.
func (ns *namespace) makeTarget(name string, target entry, shown fs.FileMode) (position, error) {
	if target.node() == nil {
		mode := fs.FileMode(0o640)
		if shown.IsDir() {
			mode = fs.ModeDir | 0o750
		}
		if _, err := target.create(mode); err != nil {
			return position{}, fmt.Errorf("making the mount point: %w", err)
		}
	}
	at, err := ns.resolve(name, walk{strict: true})
	if err == nil && at.node.mode.IsDir() != shown.IsDir() {
		err = syscall.ENOTDIR
	}
	return at, err
}

// shown finds what the mount is to show: the source of a bind, or the root of a filesystem.
func (ns *namespace) shown(plan mount.Plan, public []string) (position, error) {
	if plan.Bind {
		at, err := ns.resolve(plan.Source, walk{follow: true})
		if err == nil && at.mount.unbindable {
			err = fmt.Errorf("%q is on an unbindable mount: %w", plan.Source, syscall.EINVAL)
		}
		return at, err
	}
	if plan.SELinuxContext != "" && !ns.seLinux {
		return position{}, fmt.Errorf("the machine runs no SELinux: %w", mount.ErrUnsupported)
	}
	filesystem, err := ns.open(plan)
	if err != nil {
		return position{}, err
	}
	if plan.SELinuxContext != "" {
		filesystem.options = append(filesystem.options, `context="`+plan.SELinuxContext+`"`)
	}
	filesystem.options = append(filesystem.options, public...)
	if plan.ReadOnly() {
		filesystem.readOnly = true
	}
	return position{&mounted{fs: filesystem}, filesystem.root, "/"}, nil
}

// open returns the filesystem to mount: a new one, or one that the source has held since it was mounted first.
func (ns *namespace) open(plan mount.Plan) (*filesystem, error) {
	if plan.FSType == "tmpfs" {
		return ns.openMemory(plan)
	}
	if !slices.Contains(ns.fsTypes, plan.FSType) {
		return nil, fmt.Errorf("the kernel has no filesystem %q: %w: %w", plan.FSType, mount.ErrUnsupported, syscall.ENODEV)
	}
	key := plan.FSType + " " + plan.Source
	known := ns.super[key]
	if known == nil {
		known = ns.newFilesystem(plan.FSType, plan.Source)
		ns.super[key] = known
	}
	if !slices.ContainsFunc(ns.mounts, func(mp *mounted) bool { return mp.fs == known }) {
		known.options, known.readOnly = nil, false
	}
	return known, nil
}

func (ns *namespace) openMemory(plan mount.Plan) (*filesystem, error) {
	if err := checkMemoryOptions(plan.Data); err != nil {
		return nil, err
	}
	memory := ns.newFilesystem("tmpfs", plan.Source)
	memory.root.mode = fs.ModeDir | fs.ModeSticky | 0o777
	for _, option := range plan.Data {
		key, value, _ := strings.Cut(option, "=")
		if mode, err := strconv.ParseUint(value, 8, 12); key == "mode" && err == nil {
			memory.root.mode = fs.ModeDir | fs.FileMode(mode).Perm()
		}
	}
	return memory, nil
}

// checkMemoryOptions refuses what tmpfs refuses, and names no option, since its value may be a secret.
func checkMemoryOptions(options []string) error {
	for _, option := range options {
		key, value, _ := strings.Cut(option, "=")
		if !validMemoryOption(key, value) {
			return fmt.Errorf("an option of tmpfs is unknown or has a bad value: %w", syscall.EINVAL)
		}
	}
	return nil
}

// validMemoryOption knows the options of tmpfs(5).
func validMemoryOption(key, value string) bool {
	var err error
	switch key {
	case "size", "nr_inodes", "nr_blocks":
		_, err = strconv.ParseUint(strings.TrimRight(value, "kmgKMG%"), 10, 64)
	case "uid", "gid":
		_, err = strconv.ParseUint(value, 10, 32)
	case "mode":
		_, err = strconv.ParseUint(value, 8, 12)
	case "huge", "mpol", "noswap", "inode32", "inode64":
	default:
		return false
	}
	return err == nil
}

// bound copies what is to be mounted, and what is mounted below it if the plan says so, and gives it its options.
func (ns *namespace) bound(shown position, plan mount.Plan) []*mounted {
	tree := ns.copyTree(ns.taken(shown, plan))
	tree[0].root, tree[0].rootPath = shown.node, shown.rel
	for _, mp := range tree {
		mp.change(plan)
	}
	ns.propagateAll(tree, plan)
	return tree
}

// taken returns the mounts that a bind of the plan copies.
func (ns *namespace) taken(shown position, plan mount.Plan) []*mounted {
	return ns.tree(shown.mount, func(mp *mounted) bool {
		return plan.Recursive && !mp.unbindable && (mp.parent != shown.mount || isWithin(mp.pointPath, shown.rel))
	})
}

// checkIDMappings refuses to map the owners in what the plan mounts, as the kernel does.
func (ns *namespace) checkIDMappings(shown position, plan mount.Plan) error {
	if plan.IDMappings.IsZero() {
		return nil
	}
	for _, mp := range ns.taken(shown, plan) {
		if slices.Contains(mp.options, "idmapped") {
			return fmt.Errorf("the mount at %q is id-mapped already: %w", mp.path, syscall.EPERM)
		}
		if slices.Contains(ns.unmapped, mp.fs.fsType) {
			return fmt.Errorf("the owners in %s at %q cannot be mapped: %w: %w", mp.fs.fsType, mp.path, mount.ErrUnsupported, syscall.EINVAL)
		}
	}
	return nil
}

// change gives the mount the options of the plan.
func (mp *mounted) change(plan mount.Plan) {
	for _, option := range plan.Clear {
		mp.readOnly = mp.readOnly && option != "ro"
		mp.options = slices.DeleteFunc(mp.options, func(o string) bool { return o == option })
	}
	for _, option := range plan.Set {
		if option == "ro" {
			mp.readOnly = true
			continue
		}
		mp.options = slices.DeleteFunc(mp.options, func(other string) bool { return excludes(option, other) })
		mp.options = append(mp.options, option)
	}
	if !plan.IDMappings.IsZero() {
		mp.options = append(mp.options, "idmapped")
	}
}

// excludes reports whether a mount that has got option cannot have other beside it.
func excludes(option, other string) bool {
	return option == other || slices.Contains(accessTimes, option) && slices.Contains(accessTimes, other)
}

// accessTimes are the options of which a mount has one at most.
var accessTimes = []string{"noatime", "relatime", "strictatime"}

// remount changes the uppermost mount at the target.
func (ns *namespace) remount(plan mount.Plan) error {
	at, err := ns.resolve(plan.Target, walk{strict: true})
	if err != nil {
		return err
	}
	if !at.isMountPoint() {
		return mount.ErrNotMounted
	}
	if !plan.Bind {
		filesystem := at.mount.fs
		if err := filesystem.check(plan.Data); err != nil {
			return err
		}
		filesystem.resize(plan.Data)
		if !plan.Below {
			filesystem.readOnly = plan.ReadOnly() || filesystem.readOnly && !slices.Contains(plan.Clear, "ro")
		}
	}
	tree := ns.tree(at.mount, all)
	for i, mp := range tree {
		if i == 0 || plan.Below {
			mp.change(plan)
		}
	}
	if plan.Propagation != "" {
		ns.propagateAll(tree, plan)
	}
	return nil
}

// resize takes over the size that a remount gives to a tmpfs.
func (f *filesystem) resize(options []string) {
	isSize := func(option string) bool { return strings.HasPrefix(option, "size=") }
	i := slices.IndexFunc(options, isSize)
	if i < 0 || f.fsType != "tmpfs" {
		return
	}
	f.options = append(slices.DeleteFunc(f.options, isSize), options[i])
}

// sizeUnits are the suffixes of tmpfs(5).
var sizeUnits = map[byte]int64{'k': 1 << 10, 'm': 1 << 20, 'g': 1 << 30}

// capacity reads the option size.
func (f *filesystem) capacity() (int64, error) {
	for _, option := range f.options {
		text, ok := strings.CutPrefix(option, "size=")
		if !ok || text == "" || f.fsType != "tmpfs" {
			continue
		}
		unit, ok := sizeUnits[text[len(text)-1]|0x20]
		if ok {
			text = text[:len(text)-1]
		} else {
			unit = 1
		}
		if n, err := strconv.ParseInt(text, 10, 64); err == nil {
			return n * unit, nil
		}
	}
	return 0, fmt.Errorf("a %s without a size in bytes: %w", f.fsType, errors.ErrUnsupported)
}

// check refuses options that the filesystem does not know. Only those of tmpfs are known here.
func (f *filesystem) check(options []string) error {
	if f.fsType != "tmpfs" {
		return nil
	}
	return checkMemoryOptions(options)
}

// unmount takes off every mount at the path.
func (ns *namespace) unmount(name string, options mount.UnmountOptions) error {
	taken, err := ns.unmountAll(name, options)
	if err == nil && taken == 0 {
		err = mount.ErrNotMounted
	}
	if err == nil {
		return nil
	}
	if taken > 0 {
		err = fmt.Errorf("%w: %d mounts were taken off: %w", mount.ErrUncertain, taken, err)
	}
	return fmt.Errorf("unmounting %q: %w", name, err)
}

// unmountAll takes off one mount after the other and counts them.
func (ns *namespace) unmountAll(name string, options mount.UnmountOptions) (taken int, err error) {
	for ; ; taken++ {
		at, err := ns.locate(name)
		switch {
		case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ENOTDIR):
			return taken, nil
		case err != nil:
			return taken, err
		case !at.isMountPoint() || at.mount.path != name:
			return taken, nil
		}
		if err := ns.unmountTop(at.mount, options); err != nil {
			return taken, err
		}
	}
}

func (ns *namespace) unmountTop(mp *mounted, options mount.UnmountOptions) error {
	if found := mp.line(); !options.Expect.Is(found) {
		return fmt.Errorf("found %+v where %+v was expected: %w", found.Identity(), options.Expect, mount.ErrForeign)
	}
	if options.Lazy {
		ns.detach(ns.unmountedWith(ns.tree(mp, all)))
		return nil
	}
	gone := ns.unmountedWith([]*mounted{mp})
	if ns.hasChildren(mp) || slices.ContainsFunc(gone, func(g *mounted) bool { return g.held > 0 }) {
		return fmt.Errorf("still in use: %w", syscall.EBUSY)
	}
	ns.detach(gone)
	return nil
}

func (ns *namespace) hasChildren(mp *mounted) bool {
	return slices.ContainsFunc(ns.mounts, func(other *mounted) bool { return other.parent == mp })
}

func (ns *namespace) removeTarget(name string) error {
	e, err := ns.parent(name, walk{strict: true})
	n := e.node
	if errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ENOTDIR) {
		return nil
	}
	switch {
	case err != nil:
	case n() == nil:
		return nil
	case !n().mode.IsDir() && !n().mode.IsRegular():
		err = fmt.Errorf("neither a directory nor a file: %w", syscall.ENOTDIR)
	case len(n().data) > 0 && !ns.isBusy(n()):
		err = fmt.Errorf("a file of %d bytes is no mount point: %w", len(n().data), syscall.ENOTEMPTY)
	default:
		err = ns.remove(e)
	}
	if err != nil {
		return fmt.Errorf("removing %q: %w", name, err)
	}
	return nil
}

func (ns *namespace) isMountPoint(name string) (bool, error) {
	clean, err := cleanPath(name)
	if err != nil {
		return false, err
	}
	at, err := ns.locate(clean)
	if err != nil {
		return false, fmt.Errorf("is %q a mount point: %w", name, err)
	}
	return at.isMountPoint(), nil
}

// lookup finds the uppermost mount at the path. A path with a symbolic link in it is not one of the mount table.
func (ns *namespace) lookup(name string) (mount.MountPoint, error) {
	clean, err := cleanPath(name)
	if err != nil {
		return mount.MountPoint{}, err
	}
	at, err := ns.locate(clean)
	if err != nil || !at.isMountPoint() {
		return mount.MountPoint{}, fmt.Errorf("looking up %q: %w", name, mount.ErrNotMounted)
	}
	return at.mount.line(), nil
}

func (ns *namespace) refs(name string) ([]string, error) {
	clean, err := cleanPath(name)
	if err != nil {
		return nil, err
	}
	at, err := ns.locate(clean)
	if err != nil || !at.isMountPoint() {
		return nil, nil //nolint:nilerr // What does not exist is mounted nowhere else.
	}
	var paths []string
	for _, other := range ns.mounts {
		if other != at.mount && other.fs == at.mount.fs && other.rootPath == at.mount.rootPath {
			paths = append(paths, other.path)
		}
	}
	return paths, nil
}

// line is the mount's line in the table.
func (mp *mounted) line() mount.MountPoint {
	p := mount.MountPoint{
		UniqueID: mp.id, ID: mp.id, Minor: mp.fs.minor, Root: mp.rootPath, Path: mp.path, Source: mp.fs.source, FSType: mp.fs.fsType,
		Options:      append([]string{accessWords[mp.readOnly]}, mp.options...),
		SuperOptions: append([]string{accessWords[mp.fs.readOnly]}, mp.fs.options...),
		Propagation:  mp.fields(),
	}
	if mp.parent != nil {
		p.ParentID = mp.parent.id
	}
	return p
}

// accessWords are the first option in the table.
var accessWords = map[bool]string{false: "rw", true: "ro"}
