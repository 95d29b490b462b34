// Package modules lists the modules of this repository: which are released, their order by dependency, and their
// exported API.
//
// All released modules have the same version. The go.mod of any other module has a comment "not released" at its module
// line, with the reason.
package modules

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/semver"

	"github.com/volumekit/volumekit/tools/internal/exported"
)

// Module is a module of the repository.
type Module struct {
	Path string // the import path
	Dir  string // the path in the repository, with slashes; "" is the root module
	File *modfile.File
}

// Tag returns the name of this module's tag for a version.
func (m Module) Tag(version string) string {
	if m.Dir == "" {
		return version
	}
	return m.Dir + "/" + version
}

// Released returns the released modules below root. Each comes after those that it requires.
func Released(root string) ([]Module, error) {
	var all []Module
	err := filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && name != root && (entry.Name() == "testdata" || strings.HasPrefix(entry.Name(), ".")):
			return filepath.SkipDir
		case entry.Name() != "go.mod":
			return nil
		}
		m, released, err := read(root, name)
		if released {
			all = append(all, m)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return inOrder(all)
}

func read(root, name string) (m Module, released bool, err error) {
	data, err := os.ReadFile(filepath.Clean(name))
	if err != nil {
		return m, false, err
	}
	file, err := modfile.Parse(name, data, nil)
	if err != nil {
		return m, false, err
	}
	dir, err := filepath.Rel(root, filepath.Dir(name))
	if err != nil {
		return m, false, err
	}
	if dir = filepath.ToSlash(dir); dir == "." {
		dir = ""
	}
	for _, comment := range file.Module.Syntax.Suffix {
		if strings.Contains(comment.Token, "not released") {
			return m, false, nil
		}
	}
	return Module{Path: file.Module.Mod.Path, Dir: dir, File: file}, true, nil
}

// inOrder fails if modules require each other in a circle: none of them could be released first.
func inOrder(all []Module) ([]Module, error) {
	slices.SortFunc(all, func(a, b Module) int { return cmp.Compare(a.Path, b.Path) })
	var ordered []Module
	for len(all) > 0 {
		i := slices.IndexFunc(all, func(m Module) bool { return len(requiredOf(m, all)) == 0 })
		if i < 0 {
			return nil, fmt.Errorf("%s and others require each other in a circle", all[0].Path)
		}
		ordered = append(ordered, all[i])
		all = slices.Delete(all, i, i+1)
	}
	return ordered, nil
}

func requiredOf(m Module, among []Module) []Module {
	return slices.DeleteFunc(slices.Clone(among), func(other Module) bool {
		return !slices.ContainsFunc(m.File.Require, func(r *modfile.Require) bool { return r.Mod.Path == other.Path })
	})
}

// Exported returns the exported API of the released modules below root, see package exported.
func Exported(root string) ([]string, error) {
	all, err := Released(root)
	if err != nil {
		return nil, err
	}
	if len(all) == 0 {
		return nil, errors.New("no module is released")
	}
	var lines []string
	for _, m := range all {
		dir, err := filepath.Abs(filepath.Join(root, m.Dir))
		if err != nil {
			return nil, err
		}
		more, err := exported.List(dir, all[0].Path)
		if err != nil {
			return nil, err
		}
		lines = append(lines, more...)
	}
	slices.Sort(lines)
	return slices.Compact(lines), nil
}

// LastList returns the file of the newest release in api/ of root, or "" if there is none.
func LastList(root string) (string, error) {
	names, err := fs.Glob(os.DirFS(root), "api/v*.txt") // root itself is no pattern
	if err != nil || len(names) == 0 {
		return "", err
	}
	newest := slices.MaxFunc(names, func(a, b string) int { return semver.Compare(versionOf(a), versionOf(b)) })
	return filepath.Join(root, filepath.FromSlash(newest)), nil
}

func versionOf(list string) string { return strings.TrimSuffix(filepath.Base(list), ".txt") }

// MissingSince returns the lines of a list that the modules below root no longer export, without those in
// api/except.txt.
func MissingSince(root, list string) ([]string, error) {
	before, err := exported.Read(list)
	if err != nil {
		return nil, err
	}
	excepted, err := exported.Read(filepath.Join(root, "api", "except.txt"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	now, err := Exported(root)
	if err != nil {
		return nil, err
	}
	return exported.Missing(exported.Missing(before, now), excepted), nil
}
