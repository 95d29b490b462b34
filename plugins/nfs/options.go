package nfs

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/volumekit/volumekit/volume"
)

// OptionError says that a mount option of a volume is refused. It matches volume.ErrInvalid.
type OptionError struct {
	// Index is the place of the option in the mount options, from 0.
	Index int
	// Key is what stands before the "=", cut at 64 bytes. The value is not told: it may be a secret.
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

// reserved are the options that say which server is mounted, and as which client: the spec and the plugin say so.
var reserved = []string{"source", "addr", "clientaddr", "mountaddr", "mounthost"}

// The limits of an option: the kernel takes 255 bytes of a value.
const (
	maxKey   = 64
	maxValue = 255
)

// checkOptions refuses what is no option of nfs(5), and what would mount another server than that of the spec. The error is an
// [*OptionError].
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

// isNameRune reports whether a label of a server's name may hold r.
func isNameRune(r rune) bool {
	return 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || r == '-' || r == '_'
}
