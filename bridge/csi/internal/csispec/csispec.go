// Package csispec has the rules of the CSI specification for all messages: the limits of fields, the syntax of names,
// and which fields hold secrets. The bridges check both what they serve and what a driver returns.
//
// It reads the fields' descriptors, so it needs no list of messages. A field of a newer specification has the general
// limits, and is secret if the specification marks it so.
package csispec

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/volumekit/volumekit/volume"
)

const (
	// MaxString is the largest length of a string in bytes, if its field has no other limit.
	MaxString = 128
	// MaxMap is the largest total size of the keys and values of a map, in bytes. Mount flags have the same limit.
	MaxMap = 4 << 10
	// MaxNodeID is the largest length of a node's id, in bytes.
	MaxNodeID = 256
	// MaxPath is the largest length of a path in bytes: that of Linux.
	MaxPath = 4095

	maxDriverName = 63
)

// CheckDriverName returns an error unless name is a valid driver name: at most 63 letters, digits, '-' and '.', the
// first and the last a letter or a digit. The error matches [volume.ErrInvalid].
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

// CheckName returns an error unless name is a valid name of a new volume or snapshot. The error matches
// [volume.ErrInvalid].
func CheckName(name string) error { return CheckID("name", name, MaxString) }

// CheckID returns an error unless id is valid in a message: not empty, at most limit bytes, UTF-8 without control
// characters except blanks. what names the kind of id in the error, which matches [volume.ErrInvalid].
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

// banned are the control characters except tab, newline and carriage return.
func banned(r rune) bool {
	return r < ' ' && r != '\t' && r != '\n' && r != '\r' || r >= 0x7f && r <= 0x9f
}
