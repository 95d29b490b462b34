package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/mod/semver"

	"github.com/volumekit/volumekit/tools/internal/modules"
)

// release is the release in progress.
type release struct {
	version string
	root    string // the repository
	dir     string // temporary files; removed at the end
	tree    string // the checkout in which the commits are made
	modules []modules.Module
	proxy   proxy
	out     io.Writer
}

// begin checks that a version can be released from the checkout in root, and makes the clone to work in.
func begin(ctx context.Context, root, version string) (*release, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return nil, err
	}
	if err := checkVersion(ctx, root, version); err != nil {
		return nil, err
	}
	dirty, err := output(ctx, root, nil, "git", "status", "--porcelain")
	if err != nil {
		return nil, err
	}
	if dirty != "" {
		return nil, fmt.Errorf("commit or remove what is changed in %s first:\n%s", root, dirty)
	}
	dir, err := os.MkdirTemp("", "release-")
	if err != nil {
		return nil, err
	}
	r := &release{version: version, root: root, dir: dir, tree: filepath.Join(dir, "tree"), out: os.Stdout}
	r.proxy = proxy{dir: filepath.Join(dir, "proxy"), tree: r.tree, version: version}
	if err := r.checkOut(ctx); err != nil {
		return nil, errors.Join(err, remove(ctx, dir))
	}
	return r, nil
}

// checkOut clones the repository, and sets the author of its commits.
func (r *release) checkOut(ctx context.Context) error {
	args := []string{"clone", "--quiet"}
	for _, key := range []string{"user.name", "user.email"} {
		value, err := output(ctx, r.root, nil, "git", "config", key)
		if err != nil {
			return fmt.Errorf("who is the author: set %s: %w", key, err)
		}
		args = append(args, "--config", key+"="+strings.TrimSpace(value))
	}
	_, err := output(ctx, r.root, nil, "git", append(args, r.root, r.tree)...)
	return err
}

var errVersion = errors.New("not a version to release")

func checkVersion(ctx context.Context, root, version string) error {
	if !semver.IsValid(version) || semver.Canonical(version) != version || semver.Major(version) > "v1" {
		return fmt.Errorf("%w: %q: write it as v0.1.0; from v2 on the paths of the modules must change", errVersion, version)
	}
	tags, err := output(ctx, root, nil, "git", "tag", "--list", "v*")
	if err != nil {
		return err
	}
	for tag := range strings.Lines(tags) {
		if tag = strings.TrimSpace(tag); semver.Compare(tag, version) >= 0 {
			return fmt.Errorf("%w: %s: there is a tag %s", errVersion, version, tag)
		}
	}
	return nil
}

func (r *release) branch() string { return "release-" + r.version }

// do makes the commits and tests the second.
func (r *release) do(ctx context.Context) error {
	var err error
	if r.modules, err = modules.Released(r.tree); err != nil {
		return err
	}
	for _, step := range []func(context.Context) error{r.checkAPI, r.writeNotes, r.keepRecords, r.prepareModules, r.prove, r.makeBranch} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	r.printNextSteps()
	return nil
}

// checkAPI fails if a released line is missing and not excepted.
func (r *release) checkAPI(context.Context) error {
	last, err := modules.LastList(r.tree)
	if err != nil || last == "" {
		return err
	}
	missing, err := modules.MissingSince(r.tree, last)
	if err != nil {
		return err
	}
	if len(missing) > 0 {
		return fmt.Errorf("%d lines of %s are gone, the first is %q: see go run ./api", len(missing), filepath.Base(last), missing[0])
	}
	return nil
}

// writeNotes makes the first commit.
func (r *release) writeNotes(ctx context.Context) error {
	name := filepath.Join(r.tree, "CHANGELOG.md")
	before, err := os.ReadFile(filepath.Clean(name))
	if err != nil {
		return err
	}
	after, err := released(string(before), r.version, time.Now())
	if err != nil {
		return err
	}
	lines, err := modules.Exported(r.tree)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(r.tree, "api"), 0o755); err != nil {
		return err
	}
	list := fmt.Sprintf("# What the modules of %s export. Made by go run ./release.\n%s\n", r.version, strings.Join(lines, "\n"))
	for name, text := range map[string]string{name: after, filepath.Join(r.tree, "api", r.version+".txt"): list} {
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil { //nolint:gosec // sources
			return err
		}
	}
	return r.commit(ctx, "release: notes and API of "+r.version)
}

// recordsTest is the test with which a package keeps the files that its release writes on disk, see
// internal/releasetest.
const recordsTest = "TestWhatReleasesHaveWritten"

// keepRecords adds the files that this version writes on disk to the first commit. Tests of later versions read them.
func (r *release) keepRecords(ctx context.Context) error {
	var found []string // directories
	err := filepath.WalkDir(r.tree, func(name string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(name, "_test.go") {
			return err
		}
		source, err := os.ReadFile(filepath.Clean(name))
		if err == nil && strings.Contains(string(source), "\nfunc "+recordsTest+"(") {
			found = append(found, filepath.Dir(name))
		}
		return err
	})
	if err != nil {
		return err
	}
	for _, dir := range found {
		// A package that mounts has its tests write nowhere else, see mount/mounttest.
		env := []string{"VOLUMEKIT_RELEASE=" + r.version, "VOLUMEKIT_MOUNTTEST_WRITABLE=" + dir}
		if _, err := output(ctx, dir, env, "go", "test", "-count=1", "-run", "^"+recordsTest+"$", "."); err != nil {
			return err
		}
	}
	return r.commit(ctx, "", "--amend", "--no-edit")
}

// prepareModules makes the second commit. A module's go.sum has the sums of the modules that it requires. So each
// module is committed and added to the proxy before the next one is changed.
func (r *release) prepareModules(ctx context.Context) error {
	if err := r.commit(ctx, "release: the modules of "+r.version, "--allow-empty"); err != nil {
		return err
	}
	for _, m := range r.modules {
		fmt.Fprintln(r.out, "prepare", m.Path)
		if err := r.prepare(ctx, m); err != nil {
			return fmt.Errorf("module %s: %w", m.Path, err)
		}
	}
	return nil
}

func (r *release) prepare(ctx context.Context, m modules.Module) error {
	dir := filepath.Join(r.tree, m.Dir)
	for _, other := range r.modules {
		if err := m.File.DropReplace(other.Path, ""); err != nil {
			return err
		}
		if slices.ContainsFunc(m.File.Require, requires(other.Path)) {
			if err := m.File.AddRequire(other.Path, r.version); err != nil {
				return err
			}
		}
	}
	m.File.Cleanup()
	if len(m.File.Replace) > 0 {
		return fmt.Errorf("its users miss the replacement of %s: require a version that needs none", m.File.Replace[0].Old.Path)
	}
	text, err := m.File.Format()
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "go.mod"), text, 0o644); err != nil { //nolint:gosec // sources
		return err
	}
	env, err := r.environment(ctx)
	if err != nil {
		return err
	}
	if _, err := output(ctx, dir, env, "go", "mod", "tidy"); err != nil {
		return err
	}
	if err := r.commit(ctx, "", "--amend", "--no-edit", "--allow-empty"); err != nil {
		return err
	}
	return r.proxy.add(m)
}

func (r *release) makeBranch(ctx context.Context) error {
	_, err := output(ctx, r.root, nil, "git", "fetch", "--quiet", r.tree, "HEAD:refs/heads/"+r.branch())
	return err
}

func (r *release) printNextSteps() {
	fmt.Fprintf(r.out, "\n%s is made, on branch %s. Nothing is published. To publish it:\n\n", r.version, r.branch())
	fmt.Fprintf(r.out, "git merge --ff-only %s^\n", r.branch())
	for _, m := range r.modules {
		fmt.Fprintf(r.out, "git tag -a -m %q %s %s\n", m.Path+" "+r.version, m.Tag(r.version), r.branch())
	}
	for _, m := range r.modules {
		fmt.Fprintf(r.out, "git push origin %s\n", m.Tag(r.version))
	}
}

// commit commits all changes in the checkout, with a message or the arguments that name one.
func (r *release) commit(ctx context.Context, message string, args ...string) error {
	if _, err := output(ctx, r.tree, nil, "git", "add", "--all"); err != nil {
		return err
	}
	if message != "" {
		args = append(args, "-m", message)
	}
	_, err := output(ctx, r.tree, nil, "git", append([]string{"commit", "--quiet"}, args...)...)
	return err
}

// end removes the temporary files, also after a signal, and joins its own errors to err.
func (r *release) end(ctx context.Context, err error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	_, cleaned := output(ctx, r.root, []string{"GOMODCACHE=" + r.cache()}, "go", "clean", "-modcache") // its files are read-only
	return errors.Join(err, cleaned, remove(ctx, r.dir))
}
