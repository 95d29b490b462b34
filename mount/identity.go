package mount

import (
	"fmt"
	"strings"
)

// Identity identifies a mount, so a program can later tell its own mount from a foreign one at the same path. Two
// identities are equal (==) if all their fields are. An identity on disk is valid until the next boot, because the kernel
// then restarts its counters.
type Identity struct {
	// UniqueID is an id that the kernel never gives to another mount; 0 if it is not known.
	UniqueID uint64
	// ID is the id in the mount table. The kernel reuses it after the mount is gone. It is 0 if it is not known.
	ID uint64
	// Major and Minor are the device number of the filesystem. Both are 0 if it is not known.
	Major, Minor uint32
	// Root is the path within the filesystem that is mounted; empty when it is not known.
	Root string
	// FSType is the filesystem; empty when it is not known.
	FSType string
	// Source is the device or the remote path; empty when it is not known, or when the filesystem has none.
	Source string
	// Flags are the options of the mount itself, such as "rw,nosuid", as the mount table joins them; empty when they are
	// not known. [Identity.Is] ignores them: a mount that was made read-only is still the same mount and must still be
	// unmounted. [Identity.FlagsChanged] compares them.
	Flags string
}

// Identity returns the identity of the mount.
func (m MountPoint) Identity() Identity {
	return Identity{
		UniqueID: m.UniqueID, ID: m.ID, Major: m.Major, Minor: m.Minor,
		Root: m.Root, FSType: m.FSType, Source: m.Source, Flags: strings.Join(m.Options, ","),
	}
}

// Is reports whether the identity is that of m. If both have a unique id, only that counts: it survives every remount and
// move. Otherwise id, device, root, filesystem and source must all be equal. A field that the identity does not know
// matches anything, so the zero Identity matches every mount.
func (i Identity) Is(m MountPoint) bool {
	if i.UniqueID != 0 && m.UniqueID != 0 {
		return i.UniqueID == m.UniqueID
	}
	hasDevice := i.Major != 0 || i.Minor != 0
	return same(i.ID, m.ID) && (!hasDevice || i.Major == m.Major && i.Minor == m.Minor) &&
		same(i.Root, m.Root) && same(i.FSType, m.FSType) && same(i.Source, m.Source)
}

// FlagsChanged reports whether m was remounted with other flags than those of the identity. It returns false if the
// identity has none.
func (i Identity) FlagsChanged(m MountPoint) bool {
	return !same(i.Flags, strings.Join(m.Options, ","))
}

// same reports whether known equals now, or known is zero, which means that nothing is known.
func same[T comparable](known, now T) bool {
	var unknown T
	return known == unknown || known == now
}

// describe names the mount for an error. It leaves out the options, which may be secrets.
func (i Identity) describe() string {
	var known []string
	add := func(isKnown bool, format string, args ...any) {
		if isKnown {
			known = append(known, fmt.Sprintf(format, args...))
		}
	}
	add(i.FSType != "", "%s", i.FSType)
	add(i.Source != "", "%q", i.Source)
	add(i.Root != "", "root %q", i.Root)
	add(i.Major != 0 || i.Minor != 0, "device %d:%d", i.Major, i.Minor)
	add(i.ID != 0, "mount id %d", i.ID)
	add(i.UniqueID != 0, "unique id %d", i.UniqueID)
	return "(" + strings.Join(known, ", ") + ")"
}
