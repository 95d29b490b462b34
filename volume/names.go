package volume

import (
	"fmt"
	"strings"
	"unicode/utf8"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// UniquePodName identifies a pod on a node: its UID.
type UniquePodName types.UID

// GetUniquePodName returns the unique name of pod.
func GetUniquePodName(pod *v1.Pod) UniquePodName { return UniquePodName(pod.UID) }

// GetUniqueVolumeName returns the unique name of a volume that pods share: {plugin name}/{volume name}, where the
// volume name is what the plugin's GetVolumeName returned.
func GetUniqueVolumeName(pluginName, volumeName string) v1.UniqueVolumeName {
	return v1.UniqueVolumeName(pluginName + "/" + volumeName)
}

// GetUniqueVolumeNameFromSpec asks plugin for the name of spec and returns the unique name that pods share.
func GetUniqueVolumeNameFromSpec(plugin VolumePlugin, spec *Spec) (v1.UniqueVolumeName, error) {
	if plugin == nil || spec == nil {
		return "", fmt.Errorf("unique name of a volume: plugin or spec is nil: %w", ErrInvalid)
	}
	name, err := plugin.GetVolumeName(spec)
	if err != nil {
		return "", fmt.Errorf("plugin %q cannot name volume %q: %w", plugin.GetPluginName(), spec.Name(), err)
	}
	switch {
	case name == "":
		return "", fmt.Errorf("plugin %q gives volume %q an empty name: %w", plugin.GetPluginName(), spec.Name(), ErrInvalid)
	case strings.HasPrefix(name, ownPrefix):
		return "", fmt.Errorf("plugin %q gives volume %q the name %q, and %q begins the names of volumes of one pod: give it another name: %w",
			plugin.GetPluginName(), spec.Name(), name, ownPrefix, ErrInvalid)
	}
	return GetUniqueVolumeName(plugin.GetPluginName(), name), nil
}

// ownPrefix begins the volume name of each volume that belongs to one pod alone, and of no other.
const ownPrefix = "pods/"

// GetUniqueVolumeNameFromSpecWithPod returns the unique name of a volume that belongs to one pod alone:
// {plugin name}/pods/{pod UID}/{inner name}. Neither a UID nor an inner name holds a slash, so that two such names are equal
// only if all of their parts are. A volume that pods share has no such name.
func GetUniqueVolumeNameFromSpecWithPod(podName UniquePodName, plugin VolumePlugin, spec *Spec) v1.UniqueVolumeName {
	return ownVolumeName(plugin.GetPluginName(), podName, spec)
}

func ownVolumeName(pluginName string, podName UniquePodName, spec *Spec) v1.UniqueVolumeName {
	return v1.UniqueVolumeName(pluginName + "/" + ownPrefix + string(podName) + "/" + spec.Name())
}

// SplitUniqueName returns the plugin name and the volume name of a unique name. Since a plugin name has exactly one
// slash, the second slash parts the two. Anything else is an error that matches [ErrInvalid].
func SplitUniqueName(name v1.UniqueVolumeName) (pluginName, volumeName string, err error) {
	domain, rest, ok := strings.Cut(string(name), "/")
	if !ok {
		return "", "", fmt.Errorf("unique volume name %q has no plugin name: %w", name, ErrInvalid)
	}
	base, volumeName, ok := strings.Cut(rest, "/")
	if !ok || domain == "" || base == "" || volumeName == "" {
		return "", "", fmt.Errorf("unique volume name %q is not domain/plugin/volume: %w", name, ErrInvalid)
	}
	return string(name)[:len(domain)+len("/")+len(base)], volumeName, nil
}

// EscapeQualifiedName makes a plugin name one path element: every slash becomes a tilde. A name that is escaped
// already stays as it is, because no plugin name holds a tilde.
func EscapeQualifiedName(name string) string { return strings.ReplaceAll(name, "/", "~") }

// UnescapeQualifiedName undoes [EscapeQualifiedName].
func UnescapeQualifiedName(name string) string { return strings.ReplaceAll(name, "~", "/") }

// maxPathElement is NAME_MAX of Linux filesystems, in bytes.
const maxPathElement = 255

// CheckPathElement reports whether name, which comes from a spec, can be one element of a path: not empty, not "." or
// "..", no slash, no backslash, no control character, valid UTF-8, at most 255 bytes. Everything that the core joins
// into a path is checked with it once; a plugin must check what it joins itself. The error matches [ErrInvalid].
func CheckPathElement(name string) error {
	if isPlainElement(name) {
		return nil // As nearly all are, and it is asked for each volume of each pod.
	}
	why := ""
	switch {
	case name == "":
		why = "is empty"
	case name == "." || name == "..":
		why = "is a reference to a directory"
	case len(name) > maxPathElement:
		why = fmt.Sprintf("is longer than %d bytes", maxPathElement)
	case !utf8.ValidString(name):
		why = "is not valid UTF-8"
	case strings.ContainsAny(name, `/\`):
		why = "holds a slash or a backslash"
	case strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f }):
		why = "holds a control character"
	}
	if why == "" {
		return nil
	}
	return fmt.Errorf("name %s %s: use letters, digits, '-' and '.': %w", Quote(name), why, ErrInvalid)
}

// isPlainElement reports whether name is of letters, digits and what else ASCII has that is harmless anywhere in a name,
// begins with none of the dots, and is short enough.
func isPlainElement(name string) bool {
	if name == "" || name[0] == '.' || len(name) > maxPathElement {
		return false
	}
	for i := range len(name) {
		if c := name[i]; c <= ' ' || c >= 0x7f {
			return false
		}
	}
	return strings.IndexByte(name, '/') < 0 && strings.IndexByte(name, '\\') < 0
}

// ValidatePathNoBacksteps reports whether path has no element "..". The error matches [ErrInvalid].
func ValidatePathNoBacksteps(path string) error {
	for element := range strings.SplitSeq(path, "/") {
		if element == ".." {
			return fmt.Errorf("path %s must not contain '..': %w", Quote(path), ErrInvalid)
		}
	}
	return nil
}
