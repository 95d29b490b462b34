package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/mod/modfile"

	"github.com/volumekit/volumekit/tools/internal/modules"
)

// prove uses each module as a user does.
func (r *release) prove(ctx context.Context) error {
	for _, m := range r.modules {
		fmt.Fprintln(r.out, "get", m.Path)
		if err := r.use(ctx, m); err != nil {
			return fmt.Errorf("who gets %s: %w", m.Path, err)
		}
	}
	return r.runREADME(ctx)
}

// use gets a module in an empty folder, compiles each package that can be imported, and installs each command.
func (r *release) use(ctx context.Context, m modules.Module) error {
	env, err := r.environment(ctx)
	if err != nil {
		return err
	}
	imports, commands, err := packagesOf(ctx, filepath.Join(r.tree, m.Dir), env)
	if err != nil {
		return err
	}
	if len(imports) > 0 {
		var program strings.Builder
		program.WriteString("package main\n\nimport (\n")
		for _, path := range imports {
			fmt.Fprintf(&program, "\t_ %q\n", path)
		}
		program.WriteString(")\n\nfunc main() {}\n")
		if err := r.build(ctx, env, program.String(), m); err != nil {
			return err
		}
	}
	for _, path := range commands {
		if _, err := output(ctx, r.dir, append(env, "GOBIN="+filepath.Join(r.dir, "bin")), "go", "install", path+"@"+r.version); err != nil {
			return err
		}
	}
	return nil
}

// build compiles a program that requires modules of this release, in an empty folder, as the file "program" there.
func (r *release) build(ctx context.Context, env []string, source string, requires ...modules.Module) error {
	dir := r.stranger()
	if err := remove(ctx, dir); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte(source), 0o600); err != nil {
		return err
	}
	commands := [][]string{{"mod", "init", "example.com/stranger"}}
	for _, m := range requires {
		commands = append(commands, []string{"get", m.Path + "@" + r.version})
	}
	for _, args := range append(commands, []string{"mod", "tidy"}, []string{"build", "-o", "program", "."}) {
		if _, err := output(ctx, dir, env, "go", args...); err != nil {
			return err
		}
	}
	return nil
}

func (r *release) stranger() string { return filepath.Join(r.dir, "stranger") }

// packagesOf returns the importable packages of a module, and its commands.
func packagesOf(ctx context.Context, dir string, env []string) (imports, commands []string, err error) {
	list, err := output(ctx, dir, env, "go", "list", "-f", "{{if .GoFiles}}{{.Name}} {{.ImportPath}}{{end}}", "./...")
	if err != nil {
		return nil, nil, err
	}
	for line := range strings.Lines(list) {
		name, path, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch {
		case slices.Contains(strings.Split(path, "/"), "internal"):
		case name == "main":
			commands = append(commands, path)
		default:
			imports = append(imports, path)
		}
	}
	return imports, commands, nil
}

var errREADME = errors.New("README.md has no Go program")

// runREADME builds the README's program with the root module and runs it.
func (r *release) runREADME(ctx context.Context) error {
	text, err := os.ReadFile(filepath.Join(r.tree, "README.md"))
	if err != nil {
		return err
	}
	_, rest, _ := strings.Cut(string(text), "\n```go\n")
	program, _, found := strings.Cut(rest, "\n```\n")
	if !found {
		return errREADME
	}
	fmt.Fprintln(r.out, "run the program of README.md")
	env, err := r.environment(ctx)
	if err != nil {
		return err
	}
	if err := r.build(ctx, env, program, r.modules[0]); err != nil {
		return err
	}
	root := filepath.Join(r.dir, "root")
	if err := os.MkdirAll(root, 0o700); err != nil {
		return err
	}
	_, err = output(ctx, r.dir, nil, filepath.Join(r.stranger(), "program"), root)
	return err
}

// environment is the environment of the go command of a user who gets our modules from the proxy. All other modules
// come from this machine's cache or from their usual proxy. Downloads go to a separate cache: the machine's cache must
// never hold a version that is not published.
func (r *release) environment(ctx context.Context) ([]string, error) {
	settings, err := output(ctx, r.root, nil, "go", "env", "GOMODCACHE", "GOPROXY", "GONOSUMDB", "GOFLAGS")
	if err != nil {
		return nil, err
	}
	lines := strings.Split(settings, "\n")
	return []string{
		"GOPROXY=file://" + r.proxy.dir + ",file://" + filepath.Join(lines[0], "cache", "download") + "," + lines[1],
		"GONOSUMDB=" + strings.Trim(r.modules[0].Path+","+lines[2], ","),
		"GOMODCACHE=" + r.cache(), "GOFLAGS=" + lines[3] + " -mod=mod -trimpath", "GOWORK=off",
	}, nil
}

func (r *release) cache() string { return filepath.Join(r.dir, "cache") }

func requires(path string) func(*modfile.Require) bool {
	return func(r *modfile.Require) bool { return r.Mod.Path == path }
}

// remove deletes dir, but nothing inside a mount that a program has left below it.
func remove(ctx context.Context, dir string) error {
	_, err := output(ctx, filepath.Dir(dir), nil, "rm", "-rf", "--one-file-system", dir)
	return err
}

// output runs a program in dir, with env beside this process's own, and returns what it printed.
func output(ctx context.Context, dir string, env []string, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	var out, errors bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errors
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s %s, in %s: %w\n%s%s", name, strings.Join(args, " "), dir, err, &out, &errors)
	}
	return out.String(), nil
}
