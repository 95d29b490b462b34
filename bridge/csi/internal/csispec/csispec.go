// Package csispec is what the specification of CSI says of all messages, whoever sends them: how long a field may be, what a name is
// made of, and which fields hold secrets. A driver that is served is held to it, and so is a driver that is used.
//
// It knows fields by their descriptors, so that it needs no list of messages: a field that a newer specification adds has the
// general limits, and is a secret where the specification marks it.
package csispec

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/volumekit/volumekit/volume"
)

const (
	// MaxString is how long a string may be, in bytes, where its field says nothing else.
	MaxString = 128
	// MaxMap is how many bytes the keys and values of a map may have together. Mount flags have the same limit.
	MaxMap = 4 << 10
	// MaxNodeID is how long a node's id may be, in bytes.
	MaxNodeID = 256
	// MaxPath is how long a path may be, in bytes: as long as Linux takes.
	MaxPath = 4095

	maxDriverName = 63
)

// CheckDriverName reports whether name can be that of a driver: at most 63 letters, digits, '-' and '.', the first and the last
// a letter or a digit. The error matches [volume.ErrInvalid].
func CheckDriverName(name string) error {
	why := ""
	switch {
	case name == "":
		why = "is empty"
	case len(name) > maxDriverName:
		why = fmt.Sprintf("is longer than %d bytes", maxDriverName)
	case strings.ContainsFunc(name, func(r rune) bool { return !alphanumeric(r) && r != '-' && r != '.' }):
		why = "holds something else than letters, digits, '-' and '.'"
	case !alphanumeric(rune(name[0])) || !alphanumeric(rune(name[len(name)-1])):
		why = "begins or ends with something else than a letter or a digit"
	case strings.Contains(name, ".."):
		why = "holds an empty label"
	}
	return refuse("driver name", name, why)
}

// CheckName reports whether name can be that of a new volume or snapshot. The error matches [volume.ErrInvalid].
func CheckName(name string) error { return CheckID("name", name, MaxString) }

// CheckID reports whether id, of the kind what, can be in a message: not empty, at most limit bytes, UTF-8 without control
// characters but for blanks. The error matches [volume.ErrInvalid].
func CheckID(what, id string, limit int) error {
	why := ""
	switch {
	case id == "":
		why = "is empty"
	case len(id) > limit:
		why = fmt.Sprintf("is longer than %d bytes", limit)
	case !utf8.ValidString(id):
		why = "is not valid UTF-8"
	case strings.ContainsFunc(id, banned):
		why = "holds a control character"
	}
	return refuse(what, id, why)
}

func refuse(what, name, why string) error {
	if why == "" {
		return nil
	}
	return fmt.Errorf("%s %s %s, which the CSI specification does not allow: %w", what, volume.Quote(name), why, volume.ErrInvalid)
}

func alphanumeric(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
}

// banned are the control characters but for tab, newline and carriage return.
func banned(r rune) bool {
	return r < ' ' && r != '\t' && r != '\n' && r != '\r' || r >= 0x7f && r <= 0x9f
}
