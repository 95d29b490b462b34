package volumekit_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestEveryExportedIdentifierHasAComment holds what `go doc` shows: packages, types, functions, methods, struct fields,
// interface methods, constants and variables.
func TestEveryExportedIdentifierHasAComment(t *testing.T) {
	for _, dir := range packageDirs(t) {
		fset := token.NewFileSet()
		packaged := false
		for _, name := range productionFiles(t, dir) {
			file, err := parser.ParseFile(fset, name, nil, parser.ParseComments)
			require.NoError(t, err)
			packaged = packaged || file.Doc != nil
			for _, bare := range uncommented(fset, file) {
				t.Errorf("%s: exported %s has no comment", fset.Position(bare.Pos()), bare.Name)
			}
		}
		if !packaged {
			t.Errorf("package in %q has no comment", dir)
		}
	}
}

func packageDirs(t *testing.T) []string {
	t.Helper()
	return goList(t, "-f", "{{.Dir}}", "./...")
}

// productionFiles returns the files of dir for every platform, without tests.
func productionFiles(t *testing.T, dir string) []string {
	t.Helper()
	var files []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != dir:
			return filepath.SkipDir
		case strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go"):
			files = append(files, path)
		}
		return nil
	})
	require.NoError(t, err)
	return files
}

// uncommented returns the exported names of file that say nothing about themselves.
func uncommented(fset *token.FileSet, file *ast.File) []*ast.Ident {
	var bare []*ast.Ident
	for _, decl := range file.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			if d.Name.IsExported() && exportedReceiver(d) && d.Doc == nil {
				bare = append(bare, d.Name)
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				bare = append(bare, uncommentedSpec(fset, d, spec)...)
			}
		}
	}
	return bare
}

func exportedReceiver(d *ast.FuncDecl) bool {
	if d.Recv == nil {
		return true
	}
	expr := d.Recv.List[0].Type
	if star, ok := expr.(*ast.StarExpr); ok {
		expr = star.X
	}
	if index, ok := expr.(*ast.IndexExpr); ok {
		expr = index.X
	}
	name, ok := expr.(*ast.Ident)
	return ok && name.IsExported()
}

func uncommentedSpec(fset *token.FileSet, d *ast.GenDecl, spec ast.Spec) []*ast.Ident {
	switch s := spec.(type) {
	case *ast.TypeSpec:
		var bare []*ast.Ident
		if s.Name.IsExported() && d.Doc == nil && s.Doc == nil {
			bare = append(bare, s.Name)
		}
		if s.Name.IsExported() {
			bare = append(bare, uncommentedMembers(fset, s.Type)...)
		}
		return bare
	case *ast.ValueSpec:
		if d.Doc != nil || s.Doc != nil || s.Comment != nil {
			return nil
		}
		return exported(s.Names)
	}
	return nil
}

// uncommentedMembers looks into a struct or an interface. A comment covers the members on the lines that follow it
// without a gap, and an embedded type speaks for itself.
func uncommentedMembers(fset *token.FileSet, expr ast.Expr) []*ast.Ident {
	var fields *ast.FieldList
	switch x := expr.(type) {
	case *ast.StructType:
		fields = x.Fields
	case *ast.InterfaceType:
		fields = x.Methods
	default:
		return nil
	}
	var bare []*ast.Ident
	covered := 0 // the last line that a comment covers
	for _, field := range fields.List {
		first, last := fset.Position(field.Pos()).Line, fset.Position(field.End()).Line
		commented := field.Doc != nil || field.Comment != nil
		if !commented && first != covered+1 {
			bare = append(bare, exported(field.Names)...)
			continue
		}
		covered = last
	}
	return bare
}

func exported(names []*ast.Ident) []*ast.Ident {
	var public []*ast.Ident
	for _, name := range names {
		if name.IsExported() {
			public = append(public, name)
		}
	}
	return public
}
