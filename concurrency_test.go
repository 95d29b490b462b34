package volumekit_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var inBackticks = regexp.MustCompile("`([^`]+)`")

func TestEveryGoroutineOfThePageOfConcurrencyIsInTheCode(t *testing.T) {
	code := declarations(t)
	var dirs []string
	for line := range strings.Lines(section(t, "## Goroutines")) {
		if strings.HasPrefix(line, "### ") {
			dirs = packagesOf(line)
			continue
		}
		_, names, _ := strings.Cut(firstCell(line), "(")
		for _, match := range inBackticks.FindAllStringSubmatch(names, -1) {
			if strings.Contains(match[1], "/") {
				continue // the package for which it runs
			}
			assert.True(t, code.has(match[1], dirs), "%s is in none of %v, nor does it name a package that has it", match[1], dirs)
		}
	}
}

func TestEveryLockOfTheVolumeManagerIsOnThePageOfConcurrency(t *testing.T) {
	code := declarations(t)
	listed := make(map[string]bool)
	for line := range strings.Lines(section(t, "## Locks")) {
		for _, match := range inBackticks.FindAllStringSubmatch(firstCell(line), -1) {
			name := match[1]
			assert.True(t, strings.Contains(name, "*") || code.has(name, code.packages), "%s is not in the code", name)
			listed[name] = true
		}
	}
	for _, lock := range code.locks {
		if dir, name := path.Split(lock); strings.HasPrefix(dir, "volumemanager/") || strings.HasPrefix(name, "volumemanager.") {
			_, short, _ := strings.Cut(name, ".")
			assert.True(t, listed[name] || listed[short], "%s has no row among the locks", name)
		}
	}
}

// section returns what is below a heading of the page, up to the next one of its level.
func section(t *testing.T, heading string) string {
	page, err := os.ReadFile("docs/concurrency.md")
	require.NoError(t, err)
	_, text, ok := strings.Cut(string(page), heading+"\n")
	require.True(t, ok, heading)
	text, _, _ = strings.Cut(text, "\n## ")
	return text
}

// firstCell returns the first cell of the row of a table; it is empty for any other line.
func firstCell(line string) string {
	if cells := strings.Split(line, "|"); len(cells) > 2 {
		return cells[1]
	}
	return ""
}

// packagesOf returns the directories of the packages that a heading names: "mount/loop" for `mount/loop.Manager`.
func packagesOf(heading string) (dirs []string) {
	for _, match := range inBackticks.FindAllStringSubmatch(heading, -1) {
		dir, name := path.Split(match[1])
		name, _, _ = strings.Cut(name, ".")
		dirs = append(dirs, dir+name)
	}
	return dirs
}

// declared is what the code declares.
type declared struct {
	// names are functions, methods, types and fields, as dir.name and dir.Type.name.
	names map[string]bool
	// packages are the directories, locks the mutexes that are fields.
	packages, locks []string
}

// has reports whether a name is in one of the directories, or in the package that its first element names. That may be one of
// the standard library's that starts goroutines.
func (d declared) has(name string, dirs []string) bool {
	if slices.ContainsFunc(dirs, func(dir string) bool { return d.names[dir+"."+name] }) {
		return true
	}
	in, rest, _ := strings.Cut(name, ".")
	return slices.Contains([]string{"context", "exec", "time"}, in) ||
		slices.ContainsFunc(d.packages, func(dir string) bool { return path.Base(dir) == in && d.names[dir+"."+rest] })
}

// declarations reads all files of the repository that are not tests.
func declarations(t *testing.T) declared {
	d := declared{names: make(map[string]bool)}
	err := filepath.WalkDir(".", func(name string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if e.IsDir() && (e.Name() == "testdata" || e.Name() == ".git") {
			return filepath.SkipDir
		}
		if filepath.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go") {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		dir := path.Dir(filepath.ToSlash(name))
		if !slices.Contains(d.packages, dir) {
			d.packages = append(d.packages, dir)
		}
		for _, decl := range file.Decls {
			d.add(dir, decl)
		}
		return nil
	})
	require.NoError(t, err)
	return d
}

func (d *declared) add(dir string, decl ast.Decl) {
	switch decl := decl.(type) {
	case *ast.FuncDecl:
		name := dir + "."
		if decl.Recv != nil {
			d.names[name+decl.Name.Name] = true // The page may name a method without its type.
			name += typeName(decl.Recv.List[0].Type) + "."
		}
		d.names[name+decl.Name.Name] = true
	case *ast.GenDecl:
		for _, spec := range decl.Specs {
			if spec, ok := spec.(*ast.TypeSpec); ok {
				d.names[dir+"."+spec.Name.Name] = true
				d.addFields(dir+"."+spec.Name.Name+".", spec.Type)
			}
		}
	}
}

// addFields adds the fields of a struct, those of structs in it too.
func (d *declared) addFields(prefix string, of ast.Expr) {
	s, ok := of.(*ast.StructType)
	if !ok {
		return
	}
	for _, field := range s.Fields.List {
		for _, name := range field.Names {
			d.names[prefix+name.Name] = true
			if kind := typeName(field.Type); kind == "Mutex" || kind == "RWMutex" {
				d.locks = append(d.locks, prefix+name.Name)
			}
			d.addFields(prefix+name.Name+".", field.Type)
		}
	}
}

// typeName returns the name of a type, without pointer, package and type arguments.
func typeName(of ast.Expr) string {
	switch of := of.(type) {
	case *ast.Ident:
		return of.Name
	case *ast.StarExpr:
		return typeName(of.X)
	case *ast.SelectorExpr:
		return of.Sel.Name
	case *ast.IndexExpr:
		return typeName(of.X)
	case *ast.IndexListExpr:
		return typeName(of.X)
	}
	return ""
}
