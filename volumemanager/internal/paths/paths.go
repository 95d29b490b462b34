// Package paths compares paths as text. It does no I/O.
package paths

import (
	"iter"
	"path/filepath"
	"strings"
)

// IsAtOrBeneath reports whether path is dir or lies below it.
func IsAtOrBeneath(path, dir string) bool { return path == dir || strings.HasPrefix(path, dir+"/") }

// IsAtOrBeneathAny reports whether path, or a directory above it, is in paths.
func IsAtOrBeneathAny(path string, paths map[string]struct{}) bool {
	for {
		if _, ok := paths[path]; ok {
			return true
		}
		end := strings.LastIndexByte(path, '/')
		if end <= 0 {
			return false
		}
		path = path[:end]
	}
}

// DepthBelow returns how many elements path has below dir; zero if path is not below dir.
func DepthBelow(path, dir string) int {
	rest, ok := strings.CutPrefix(path, filepath.Clean(dir)+"/")
	if !ok {
		return 0
	}
	return 1 + strings.Count(rest, "/")
}

// WithParents returns the paths and all directories above them.
func WithParents(paths iter.Seq[string]) map[string]struct{} {
	all := make(map[string]struct{})
	for path := range paths {
		for _, known := all[path]; !known && len(path) > 1; _, known = all[path] {
			all[path] = struct{}{}
			path = filepath.Dir(path)
		}
	}
	return all
}
