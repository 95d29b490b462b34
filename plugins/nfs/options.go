package nfs

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/volumekit/volumekit/volume"
)

// OptionError says that a mount option of a volume was refused. It matches volume.ErrInvalid.
type OptionError struct {
	// Index is the option's place in the mount options, from 0.
	Index int
	// Key is the part before the "=", cut at 64 bytes. The error leaves out the value, because it may be a secret.
	Key string
	// Why says what is wrong.
	Why string
}

// Error names the option by its key.
func (e *OptionError) Error() string {
	return fmt.Sprintf("mount option %d (%s) %s", e.Index+1, volume.Quote(e.Key), e.Why)
}

// Unwrap returns volume.ErrInvalid.
func (e *OptionError) Unwrap() error { return volume.ErrInvalid }

// reserved are the options that name the server and the client address. Users cannot set them, because the spec and the
// plugin decide both.
var reserved = []string{"source", "addr", "clientaddr", "mountaddr", "mounthost"}

// The limits of an option. The kernel accepts values of at most 255 bytes.
const (
	maxKey   = 64
	maxValue = 255
)

// checkOptions refuses options that are not in the form of nfs(5), and options that would mount another server than the
// spec's. The error is an [*OptionError].
func checkOptions(options []string) error {
	for i, option := range options {
		if why := refusal(option); why != nil {
			key := keyOf(option)
			return &OptionError{Index: i, Key: key[:min(len(key), maxKey)], Why: why.Error()}
		}
	}
	return nil
}

// refusal returns why an option is refused, or nil.
func refusal(option string) error {
	key, value, hasValue := strings.Cut(option, "=")
	isReserved := func(other string) bool { return strings.EqualFold(key, other) }
	switch {
	case key == "":
		return errors.New("has no key: write key=value, or a word")
	case len(key) > maxKey:
		return fmt.Errorf("has a key of %d bytes: give %d at most", len(key), maxKey)
	case strings.ContainsFunc(key, func(r rune) bool { return !isKeyRune(r) }):
		return errors.New("has a key with other characters than letters, digits, '-', '_' and '.'")
	case slices.ContainsFunc(reserved, isReserved):
		return errors.New("would mount another server, or as another client, than the volume says: change the source instead")
	case hasValue && value == "":
		return errors.New("has an empty value: give one, or leave the \"=\" out")
	case len(value) > maxValue:
		return fmt.Errorf("has a value of %d bytes: give %d at most", len(value), maxValue)
	case strings.ContainsFunc(value, func(r rune) bool { return r <= ' ' || r >= 0x7f || strings.ContainsRune(`,=\"'`, r) }):
		return errors.New("has a value with a blank, a comma, a quote, a backslash, a second \"=\", or a character that is not of ASCII")
	}
	return nil
}

func isKeyRune(r rune) bool { return isNameRune(r) || r == '.' }

// isNameRune reports whether r may occur in a label of a server's name.
func isNameRune(r rune) bool {
	return 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || r == '-' || r == '_'
}
