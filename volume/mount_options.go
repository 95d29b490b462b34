package volume

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// MountOptionFromSpec returns the mount options of spec's PersistentVolume followed by options, those of the plugin, so
// that the plugin's win where they contradict. A volume without a PersistentVolume has none of its own.
//
// As in Kubernetes the annotation volume.beta.kubernetes.io/mount-options, a list with commas, replaces
// spec.mountOptions, also when it is empty. Unlike there the order is kept: see [JoinMountOptions].
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

// JoinMountOptions returns userOptions followed by systemOptions in their order, since of two options that contradict
// the kernel takes the last. Of options that are equal only the last stays; blanks around an option, and options that
// are empty, go. Nothing is sorted. The result is nil when nothing is left.
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

// CheckMountOptions reports whether each of options is one option: not empty, no comma, which would smuggle in a second
// one, and no control character such as a newline or NUL. The error matches [ErrInvalid] and names the option's key
// alone, because its value may be a secret.
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
