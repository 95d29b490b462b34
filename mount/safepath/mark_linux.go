package safepath

import (
	"fmt"
	"strconv"
	"strings"
)

// mark is a name beside a mount point that says what is mounted there: .INDEX.MAJOR-MINOR-INODE.ACCESS.PROPAGATION. It is
// made before the mount and removed after it. So every mount of ours has one, whenever the process is stopped; and a mount
// whose root is not what a mark says is not ours.
type mark struct {
	index       int
	id          fileID
	access      string // "ro" or "rw"
	propagation string
}

func newMark(sub Subpath, id fileID) mark {
	m := mark{index: sub.VolumeMountIndex, id: id, access: "rw", propagation: sub.Propagation}
	if sub.ReadOnly {
		m.access = "ro"
	}
	return m
}

func (m mark) name() string {
	return fmt.Sprintf(".%d.%d-%d-%d.%s.%s", m.index, m.id.major, m.id.minor, m.id.inode, m.access, m.propagation)
}

// parseMark reads a name; it reports whether the name is a mark.
func parseMark(name string) (mark, bool) {
	parts := strings.Split(name, ".")
	if len(parts) != 5 || parts[0] != "" {
		return mark{}, false
	}
	m := mark{access: parts[3], propagation: parts[4]}
	var err error
	if m.index, err = strconv.Atoi(parts[1]); err != nil {
		return mark{}, false
	}
	numbers := strings.Split(parts[2], "-")
	if len(numbers) != 3 {
		return mark{}, false
	}
	major, majorErr := strconv.ParseUint(numbers[0], 10, 32)
	minor, minorErr := strconv.ParseUint(numbers[1], 10, 32)
	inode, inodeErr := strconv.ParseUint(numbers[2], 10, 64)
	m.id = fileID{uint32(major), uint32(minor), inode}
	return m, majorErr == nil && minorErr == nil && inodeErr == nil && m.name() == name
}

// parseIndex reads the name of a mount point.
func parseIndex(name string) (int, bool) {
	index, err := strconv.Atoi(name)
	return index, err == nil && index >= 0 && strconv.Itoa(index) == name
}
