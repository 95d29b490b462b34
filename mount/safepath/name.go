package safepath

import (
	"fmt"
	"iter"
	"strings"
)

const (
	// maxElement is NAME_MAX of Linux, in bytes.
	maxElement = 255
	// maxName is PATH_MAX of Linux without the NUL, in bytes.
	maxName = 4095
)

// checkElement refuses what cannot be one element of a name: what is empty, ".", "..", holds a slash or a NUL, or is longer
// than 255 bytes. A backslash is an ordinary character of Linux; it is refused where those who take it for a slash, such as
// other clients of a shared server, would read an element "..". The error matches [ErrInvalid], and for ".." in either
// reading [ErrEscapes], too.
func checkElement(element string) error {
	switch {
	case element == "":
		return fmt.Errorf("an empty element: %w", ErrInvalid)
	case element == ".":
		return fmt.Errorf("an element \".\": %w", ErrInvalid)
	case hasDotDot(element):
		return fmt.Errorf("an element \"..\" in %q: %w: %w", element, ErrInvalid, ErrEscapes)
	case strings.ContainsAny(element, "/\x00"):
		return fmt.Errorf("a slash or a NUL in the element %q: %w", element, ErrInvalid)
	case len(element) > maxElement:
		return fmt.Errorf("an element of %d bytes, and not of %d at most: %w", len(element), maxElement, ErrInvalid)
	}
	return nil
}

func hasDotDot(element string) bool {
	for part := range strings.SplitSeq(element, `\`) {
		if part == ".." {
			return true
		}
	}
	return false
}

// CheckName refuses what is no name: elements that pass [checkElement], joined by single slashes, without one at either
// end, 4095 bytes at most. The error matches [ErrInvalid].
func CheckName(name string) error {
	if len(name) > maxName {
		return fmt.Errorf("%d bytes, and not %d at most: %w", len(name), maxName, ErrInvalid)
	}
	for element := range strings.SplitSeq(name, "/") {
		if err := checkElement(element); err != nil {
			return err
		}
	}
	return nil
}

// CleanSubpath returns a sub-path of Kubernetes as a name: one or more slashes between elements, a slash at the end and
// elements "." mean nothing there. What is absolute, holds "..", or has no element left is refused with an error that
// matches [ErrInvalid]: a path that is made of variables and comes out empty must not be the whole volume.
func CleanSubpath(path string) (string, error) {
	if strings.HasPrefix(path, "/") {
		return "", fmt.Errorf("the sub-path %q is absolute: %w", path, ErrInvalid)
	}
	var elements []string
	for element := range strings.SplitSeq(path, "/") {
		if element != "" && element != "." {
			elements = append(elements, element)
		}
	}
	name := strings.Join(elements, "/")
	if err := CheckName(name); err != nil {
		return "", fmt.Errorf("the sub-path %q: %w", path, err)
	}
	return name, nil
}

// splitName parts a name into what is above its last element, "." if that is the root, and the last element.
func splitName(name string) (dir, base string) {
	i := strings.LastIndexByte(name, '/')
	if i < 0 {
		return ".", name
	}
	return name[:i], name[i+1:]
}

// prefixes yields the names of the directories that lead to name, and name itself: "a", "a/b", "a/b/c".
func prefixes(name string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for i := range len(name) {
			if name[i] == '/' && !yield(name[:i]) {
				return
			}
		}
		yield(name)
	}
}
