package fake

import "slices"

// namespace is what is mounted, as a mount namespace of the kernel has it, and the files of it all. The lock of its Mounter is held
// when it is used.
type namespace struct {
	fsTypes   []string
	seLinux   bool
	unmapped  []string               // the types that cannot be mounted with the owners mapped
	mounts    []*mounted             // in the order of mounting; the first is the root
	super     map[string]*filesystem // by type and source, of filesystems that outlive their mounts
	lastID    uint64
	lastMinor uint32
	lastGroup uint64
}

// newNamespace returns a namespace in which nothing but the root is mounted.
func newNamespace(options MounterOptions) *namespace {
	fsTypes := options.FSTypes
	if fsTypes == nil {
		fsTypes = []string{"ext2", "ext3", "ext4", "xfs", "btrfs", "vfat", "nfs", "nfs4"}
	}
	unmapped := options.NoIDMappings
	if unmapped == nil {
		unmapped = []string{"nfs", "nfs4"}
	}
	ns := &namespace{fsTypes: slices.Clone(fsTypes), seLinux: options.SELinux, unmapped: slices.Clone(unmapped), super: map[string]*filesystem{}}
	root := ns.newFilesystem("ext4", "/dev/root")
	ns.mounts = []*mounted{{id: ns.nextID(), fs: root, root: root.root, rootPath: "/", path: "/"}}
	return ns
}
