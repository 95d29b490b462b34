package ownership

import "golang.org/x/sys/unix"

// rules say what every entry of a tree must have.
type rules struct {
	gid    uint32
	file   uint32 // mode bits
	dir    uint32
	onRoot bool
}

const (
	permissions = 0o7777
	readWrite   = 0o660
	readOnly    = 0o440
	// inDirs is what directories get beside.
	inDirs = 0o110 | unix.S_ISGID
)

func rulesOf(o Options) rules {
	r := rules{file: readWrite, onRoot: o.onRootMismatch()}
	if o.ReadOnly {
		r.file = readOnly
	}
	r.dir = r.file | inDirs
	if o.Group != nil {
		r.gid = uint32(*o.Group)
	}
	return r
}

// change is what one entry needs.
type change struct {
	group, mode bool
	newMode     uint32
	clearsSetID bool
}

func (c change) none() bool { return !c.group && !c.mode }

// changeOf finds out what the entry needs that st describes.
func (r rules) changeOf(st *unix.Statx_t) change {
	c := change{group: st.Gid != r.gid}
	was := uint32(st.Mode) & permissions
	bits := r.file
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFLNK: // it has no mode
		return c
	case unix.S_IFDIR:
		bits = r.dir
	default:
		if c.group {
			kept := was &^ clearedByChown(was)
			c.clearsSetID = kept != was
			was = kept
		}
	}
	c.newMode = was | bits
	c.mode = c.newMode != was
	return c
}

// clearedByChown returns the bits that the kernel takes from a file whose group changes, see chown(2). setgid without the
// bit to execute is an old way to say that locks are mandatory, and stays.
func clearedByChown(mode uint32) uint32 {
	cleared := mode & unix.S_ISUID
	if mode&unix.S_IXGRP != 0 {
		cleared |= mode & unix.S_ISGID
	}
	return cleared
}

// skip says whether the root alone shows that there is nothing to do, and why or why not.
func (r rules) skip(root *unix.Statx_t) (bool, Reason) {
	switch {
	case !r.onRoot:
		return false, policyAlways
	case root.Mode&unix.S_IFMT != unix.S_IFDIR:
		return false, rootNotDirectory
	case root.Gid != r.gid:
		return false, rootGroup
	case uint32(root.Mode)&r.dir != r.dir:
		return false, rootMode
	}
	return true, rootMatches
}
