package mount

import (
	"cmp"
	"strings"

	"golang.org/x/sys/unix"
)

// attr is one option of a mount in the words of mount_setattr(2) and of mount(2).
type attr struct {
	set  uint64
	clr  uint64 // cleared before set; 0 for a plain flag
	flag uintptr
}

// attrs is keyed by the spelling of the mount table.
var attrs = map[string]attr{
	"ro":          {set: unix.MOUNT_ATTR_RDONLY, flag: unix.MS_RDONLY},
	"nosuid":      {set: unix.MOUNT_ATTR_NOSUID, flag: unix.MS_NOSUID},
	"nodev":       {set: unix.MOUNT_ATTR_NODEV, flag: unix.MS_NODEV},
	"noexec":      {set: unix.MOUNT_ATTR_NOEXEC, flag: unix.MS_NOEXEC},
	"nodiratime":  {set: unix.MOUNT_ATTR_NODIRATIME, flag: unix.MS_NODIRATIME},
	"nosymfollow": {set: unix.MOUNT_ATTR_NOSYMFOLLOW, flag: unix.MS_NOSYMFOLLOW},
	"noatime":     {set: unix.MOUNT_ATTR_NOATIME, clr: unix.MOUNT_ATTR__ATIME, flag: unix.MS_NOATIME},
	"relatime":    {set: unix.MOUNT_ATTR_RELATIME, clr: unix.MOUNT_ATTR__ATIME, flag: unix.MS_RELATIME},
	"strictatime": {set: unix.MOUNT_ATTR_STRICTATIME, clr: unix.MOUNT_ATTR__ATIME, flag: unix.MS_STRICTATIME},
}

// atimeFlags are flags of mount(2) that exclude each other.
const atimeFlags = unix.MS_NOATIME | unix.MS_RELATIME | unix.MS_STRICTATIME

// superFlags are options of a filesystem for which mount(2) has flags. fsconfig(2) takes their names.
var superFlags = map[string]uintptr{
	"sync": unix.MS_SYNCHRONOUS, "dirsync": unix.MS_DIRSYNC, "lazytime": unix.MS_LAZYTIME, "mand": unix.MS_MANDLOCK,
	"silent": unix.MS_SILENT, "async": 0, "nolazytime": 0, "nomand": 0, "loud": 0,
}

var propagationFlags = map[string]uint64{
	"private": unix.MS_PRIVATE, "shared": unix.MS_SHARED, "slave": unix.MS_SLAVE, "unbindable": unix.MS_UNBINDABLE,
	"rprivate": unix.MS_PRIVATE, "rshared": unix.MS_SHARED, "rslave": unix.MS_SLAVE, "runbindable": unix.MS_UNBINDABLE,
}

// mountAttr is the plan for mount_setattr(2), without the propagation, which may be for other mounts than the options. It is zero
// when there is nothing to change.
func (p *Plan) mountAttr() unix.MountAttr {
	var a unix.MountAttr
	for _, option := range p.Set {
		a.Attr_set |= attrs[option].set
		a.Attr_clr |= attrs[option].clr
	}
	for _, option := range p.Clear {
		a.Attr_clr |= cmp.Or(attrs[option].clr, attrs[option].set)
	}
	return a
}

// detachedAttr is mountAttr with the propagation that a new mount has before it is attached. Nothing unbindable can be attached
// below a shared mount: until then it is private.
func (p *Plan) detachedAttr() unix.MountAttr {
	a := p.mountAttr()
	if a.Propagation = propagationFlags[p.Propagation]; a.Propagation == unix.MS_UNBINDABLE {
		a.Propagation = unix.MS_PRIVATE
	}
	return a
}

// flags is the plan for mount(2): what the mount has, changed by the plan.
func (p *Plan) flags(now []string) uintptr {
	var flags uintptr
	for _, option := range now {
		flags |= attrs[option].flag
	}
	for _, option := range p.Clear {
		flags &^= attrs[option].flag
	}
	for _, option := range p.Set {
		if attrs[option].clr != 0 {
			flags &^= atimeFlags
		}
		flags |= attrs[option].flag
	}
	return flags
}

// changesMount reports whether there are options of the mount to change, beside its propagation.
func (p *Plan) changesMount() bool { return len(p.Set)+len(p.Clear) > 0 }

// changesFilesystem reports whether a remount has anything to say to the filesystem. One that is about the propagation, or
// about the mounts below, has not.
func (p *Plan) changesFilesystem() bool {
	return len(p.Data) > 0 || !p.Below && p.changesMount() || !p.changesMount() && p.Propagation == ""
}

// recursivePropagation reports whether the propagation is for the mounts below, too.
func (p *Plan) recursivePropagation() bool {
	return p.Recursive || strings.HasPrefix(p.Propagation, "r")
}
