package volumekit_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestTheKeysOfLogsAreOnThePageOfTroubleshooting, each of them, and no other.
func TestTheKeysOfLogsAreOnThePageOfTroubleshooting(t *testing.T) {
	_, section, found := strings.Cut(content(t, "docs/troubleshooting.md"), "## Log keys\n")
	require.True(t, found)
	var listed []string
	for _, row := range regexp.MustCompile("(?m)^\\| (`.*`) \\|").FindAllStringSubmatch(section, -1) {
		for _, key := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(row[1], -1) {
			listed = append(listed, key[1])
		}
	}
	slices.Sort(listed)
	assert.Equal(t, logKeys(t), listed)
}

// logKeys returns the keys of the messages that the library and its bridges log, sorted.
func logKeys(t *testing.T) []string {
	t.Helper()
	var keys []string
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && slices.Contains([]string{"examples", "bench", "tools", "testdata", ".git"}, path) {
			return filepath.SkipDir
		}
		if entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(node ast.Node) bool {
			keys = append(keys, keysOf(node)...)
			return true
		})
		return nil
	})
	require.NoError(t, err)
	slices.Sort(keys)
	return slices.Compact(keys)
}

// keysOf returns the keys of a message that is logged; none for any other node. Those of an operation are in the list that logKeys of
// operationexecutor makes.
func keysOf(node ast.Node) []string {
	if function, ok := node.(*ast.FuncDecl); ok && function.Name.Name == "logKeys" {
		return texts(function.Body)
	}
	call, ok := node.(*ast.CallExpr)
	if !ok || len(call.Args) == 0 {
		return nil
	}
	method, ok := call.Fun.(*ast.SelectorExpr)
	level := regexp.MustCompile(`^(Debug|Info|Warn|Error)(Context)?$`)
	if !ok || !level.MatchString(method.Sel.Name) || !strings.HasSuffix(strings.ToLower(nameOf(method.X)), "logger") {
		return nil
	}
	message := slices.IndexFunc(call.Args, func(a ast.Expr) bool { return text(a) != "" })
	var keys []string
	for i := message + 1; message >= 0 && i < len(call.Args); i += 2 {
		if _, list := call.Args[i].(*ast.CallExpr); list {
			return append(keys, texts(call.Args[i])...) // append(logKeys(x), "key", value)
		}
		keys = append(keys, text(call.Args[i]))
	}
	return keys
}

// nameOf returns the last name of an expression.
func nameOf(x ast.Expr) string {
	switch x := x.(type) {
	case *ast.Ident:
		return x.Name
	case *ast.SelectorExpr:
		return x.Sel.Name
	}
	return ""
}

// text returns what a string literal says.
func text(x ast.Expr) string {
	literal, ok := x.(*ast.BasicLit)
	if !ok || literal.Kind != token.STRING {
		return ""
	}
	value, err := strconv.Unquote(literal.Value)
	if err != nil {
		return ""
	}
	return value
}

// texts returns what the string literals below a node say.
func texts(node ast.Node) []string {
	var all []string
	ast.Inspect(node, func(n ast.Node) bool {
		if x, ok := n.(ast.Expr); ok && text(x) != "" {
			all = append(all, text(x))
		}
		return true
	})
	return all
}
