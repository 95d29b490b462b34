package volume

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// MountOptionFromSpec returns the mount options of spec's PersistentVolume followed by options, those of the plugin. If
// they contradict each other, the plugin's win. A volume without a PersistentVolume has no options of its own.
//
// As in Kubernetes, the annotation volume.beta.kubernetes.io/mount-options, a comma-separated list, replaces
// spec.mountOptions, even if it is empty. Unlike in Kubernetes, the order is kept: see [JoinMountOptions].
func MountOptionFromSpec(spec *Spec, options ...string) []string {
	if spec == nil || spec.PersistentVolume == nil {
		return JoinMountOptions(nil, options)
	}
	pv := spec.PersistentVolume
	if list, ok := pv.Annotations[v1.MountOptionAnnotation]; ok {
		return JoinMountOptions(strings.Split(list, ","), options)
	}
	return JoinMountOptions(pv.Spec.MountOptions, options)
}

// JoinMountOptions returns userOptions followed by systemOptions, in their order, because the kernel takes the last of two
// options that contradict each other. It removes blanks around options, empty options, and all but the last of equal
// options. It does not sort. The result is nil if nothing is left.
func JoinMountOptions(userOptions, systemOptions []string) []string {
	all := slices.Concat(userOptions, systemOptions)
	seen := make(map[string]bool, len(all))
	var joined []string
	for _, option := range slices.Backward(all) {
		option = strings.TrimSpace(option)
		if option == "" || seen[option] {
			continue
		}
		seen[option] = true
		joined = append(joined, option)
	}
	slices.Reverse(joined)
	return joined
}

// CheckMountOptions returns an error unless each of options is a single option. An option is not empty, and has no comma,
// which would add a second option, and no control character such as a newline or NUL. The error matches [ErrInvalid] and
// names only the key of the option, because the value may be a secret.
func CheckMountOptions(options []string) error {
	for i, option := range options {
		why := ""
		switch {
		case option == "":
			why = "is empty"
		case strings.Contains(option, ","):
			why = "holds a comma: give each option an entry of its own"
		case strings.ContainsFunc(option, func(r rune) bool { return r < ' ' || r == 0x7f }):
			why = "holds a control character"
		default:
			continue
		}
		return fmt.Errorf("mount option %d (%s) %s: %w", i+1, optionKey(option), why, ErrInvalid)
	}
	return nil
}
