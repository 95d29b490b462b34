// Package exported lists the exported API of modules, one line for each thing that a user's program can depend on, and
// compares two such lists. A removed line may break a program; a new line breaks none.
//
// An interface that a user may implement has one more line with all its methods, so a new method changes it. Lines do
// not contain names of parameters. Packages below internal/, package main and tests export nothing.
package exported

import (
	"fmt"
	"go/constant"
	"go/types"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/tools/go/packages"
)

// List returns the sorted lines of the module in dir, an absolute path, as compiled for Linux on amd64. A line begins
// with the path of its package below root, which is the path of a module.
func List(dir, root string) ([]string, error) {
	loaded, err := packages.Load(&packages.Config{
		Mode: packages.NeedName | packages.NeedTypes | packages.NeedImports | packages.NeedDeps | packages.NeedModule,
		Dir:  dir,
		Env:  append(os.Environ(), "GOOS=linux", "GOARCH=amd64", "GOWORK=off"),
	}, "./...")
	if err != nil {
		return nil, fmt.Errorf("load the packages in %s: %w", dir, err)
	}
	var lines []string
	for _, pkg := range loaded {
		if len(pkg.Errors) > 0 {
			return nil, fmt.Errorf("load package %s: %w", pkg.PkgPath, pkg.Errors[0])
		}
		if pkg.Name == "main" || slices.Contains(strings.Split(pkg.PkgPath, "/"), "internal") {
			continue
		}
		l := lister{pkg: pkg.Types, root: root}
		l.list()
		lines = append(lines, l.lines...)
	}
	slices.Sort(lines)
	return lines, nil
}

// Missing returns the lines of before that are not in now. Both are sorted.
func Missing(before, now []string) []string {
	var missing []string
	for _, line := range before {
		if _, found := slices.BinarySearch(now, line); !found {
			missing = append(missing, line)
		}
	}
	return missing
}

// Read returns the lines of a file, without blank ones and those that begin with #.
func Read(name string) ([]string, error) {
	data, err := os.ReadFile(filepath.Clean(name))
	if err != nil {
		return nil, err
	}
	var lines []string
	for line := range strings.Lines(string(data)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			lines = append(lines, line)
		}
	}
	slices.Sort(lines)
	return lines, nil
}

// lister collects the lines of one package.
type lister struct {
	pkg   *types.Package
	root  string
	lines []string
}

func (l *lister) list() {
	scope := l.pkg.Scope()
	for _, name := range scope.Names() {
		if obj := scope.Lookup(name); obj.Exported() {
			l.object(obj)
		}
	}
}

func (l *lister) object(obj types.Object) {
	switch obj := obj.(type) {
	case *types.Const:
		l.add("const %s %s = %s", obj.Name(), l.typeOf(obj.Type()), value(obj.Val()))
	case *types.Var:
		l.add("var %s %s", obj.Name(), l.typeOf(obj.Type()))
	case *types.Func:
		l.add("func %s%s", obj.Name(), l.signature(obj.Signature()))
	case *types.TypeName:
		l.typeName(obj)
	}
}

// value is written in full: users depend on the strings in objects and events.
func value(v constant.Value) string { return v.ExactString() }

func (l *lister) typeName(obj *types.TypeName) {
	if obj.IsAlias() {
		l.add("type %s = %s", obj.Name(), l.typeOf(types.Unalias(obj.Type())))
		return
	}
	name := obj.Name() + l.typeParams(obj.Type())
	switch under := obj.Type().Underlying().(type) {
	case *types.Interface:
		l.interfaceType(name, under)
		return
	case *types.Struct:
		l.structType(name, under)
	default:
		l.add("type %s %s", name, l.typeOf(under))
	}
	l.methods(name, obj.Type())
}

func (l *lister) typeParams(t types.Type) string {
	named, ok := t.(*types.Named)
	if !ok || named.TypeParams().Len() == 0 {
		return ""
	}
	return l.parameters(named.TypeParams())
}

func (l *lister) parameters(params *types.TypeParamList) string {
	var all []string
	for param := range params.TypeParams() {
		all = append(all, param.Obj().Name()+" "+l.typeOf(param.Constraint()))
	}
	return "[" + strings.Join(all, ", ") + "]"
}

func (l *lister) interfaceType(name string, t *types.Interface) {
	var methods []string
	sealed := false // no other package can implement it
	for method := range t.Methods() {
		if !method.Exported() {
			sealed = true
			continue
		}
		methods = append(methods, method.Name())
		l.add("type %s interface, %s%s", name, method.Name(), l.signature(method.Signature()))
	}
	switch {
	case sealed:
		l.add("type %s interface, sealed", name)
	case !t.IsMethodSet():
		l.add("type %s %s", name, l.typeOf(t))
	default:
		l.add("type %s interface { %s }", name, strings.Join(methods, ", "))
	}
}

func (l *lister) structType(name string, t *types.Struct) {
	l.add("type %s struct", name)
	for field := range t.Fields() {
		if field.Exported() {
			l.add("type %s struct, %s %s", name, field.Name(), l.typeOf(field.Type()))
		}
	}
}

// methods includes those of embedded types, because a program can call them.
func (l *lister) methods(name string, t types.Type) {
	values := types.NewMethodSet(t)
	for selection := range types.NewMethodSet(types.NewPointer(t)).Methods() {
		method, ok := selection.Obj().(*types.Func)
		if !ok || !method.Exported() {
			continue
		}
		receiver := name
		if values.Lookup(method.Pkg(), method.Name()) == nil {
			receiver = "*" + name
		}
		signature, ok := selection.Type().(*types.Signature)
		if !ok {
			continue
		}
		l.add("method (%s) %s%s", receiver, method.Name(), l.signature(signature))
	}
}

func (l *lister) signature(s *types.Signature) string {
	text := ""
	if s.TypeParams().Len() > 0 {
		text = l.parameters(s.TypeParams())
	}
	params := l.tuple(s.Params())
	if s.Variadic() {
		last := len(params) - 1
		params[last] = "..." + strings.TrimPrefix(params[last], "[]")
	}
	text += "(" + strings.Join(params, ", ") + ")"
	switch results := l.tuple(s.Results()); len(results) {
	case 0:
		return text
	case 1:
		return text + " " + results[0]
	default:
		return text + " (" + strings.Join(results, ", ") + ")"
	}
}

func (l *lister) tuple(vars *types.Tuple) []string {
	all := make([]string, 0, vars.Len())
	for v := range vars.Variables() {
		all = append(all, l.typeOf(v.Type()))
	}
	return all
}

// typeOf writes types of other packages with the full path, and those of this package without one.
func (l *lister) typeOf(t types.Type) string {
	if s, ok := t.(*types.Signature); ok {
		return "func" + l.signature(s)
	}
	return types.TypeString(t, types.RelativeTo(l.pkg))
}

func (l *lister) add(format string, args ...any) {
	path := strings.TrimPrefix(strings.TrimPrefix(l.pkg.Path(), l.root), "/")
	if path == "" {
		path = "."
	}
	l.lines = append(l.lines, path+": "+fmt.Sprintf(format, args...))
}
