package mounttest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/mount"
)

// mutant is a mounter with one defect: each hook that is set stands in for a method.
type mutant struct {
	*fake.Mounter

	mount        func(context.Context, mount.Request) error
	unmount      func(context.Context, string, mount.UnmountOptions) error
	removeTarget func(context.Context, string) error
	isMountPoint func(context.Context, string) (bool, error)
	line         func(mount.MountPoint) mount.MountPoint
	lookup       func(context.Context, string) (mount.MountPoint, error)
	refs         func(string, []string) []string
}

func (m *mutant) Mount(ctx context.Context, request mount.Request) error {
	if m.mount != nil {
		return m.mount(ctx, request)
	}
	return m.Mounter.Mount(ctx, request)
}

func (m *mutant) Unmount(ctx context.Context, target string, options mount.UnmountOptions) error {
	if m.unmount != nil {
		return m.unmount(ctx, target, options)
	}
	return m.Mounter.Unmount(ctx, target, options)
}

func (m *mutant) RemoveTarget(ctx context.Context, name string) error {
	if m.removeTarget != nil {
		return m.removeTarget(ctx, name)
	}
	return m.Mounter.RemoveTarget(ctx, name)
}

func (m *mutant) IsMountPoint(ctx context.Context, name string) (bool, error) {
	if m.isMountPoint != nil {
		return m.isMountPoint(ctx, name)
	}
	return m.Mounter.IsMountPoint(ctx, name)
}

func (m *mutant) Lookup(ctx context.Context, name string) (mount.MountPoint, error) {
	if m.lookup != nil {
		return m.lookup(ctx, name)
	}
	found, err := m.Mounter.Lookup(ctx, name)
	if m.line != nil && err == nil {
		found = m.line(found)
	}
	return found, err
}

func (m *mutant) List(ctx context.Context) ([]mount.MountPoint, error) {
	table, err := m.Mounter.List(ctx)
	for i := range table {
		if m.line != nil {
			table[i] = m.line(table[i])
		}
	}
	return table, err
}

func (m *mutant) GetMountRefs(ctx context.Context, name string) ([]string, error) {
	refs, err := m.Mounter.GetMountRefs(ctx, name)
	if m.refs != nil {
		refs = m.refs(name, refs)
	}
	return refs, err
}

// asks makes the mutant mount something else than what it is asked for.
func (m *mutant) asks(change func(*mount.Request)) {
	m.mount = func(ctx context.Context, request mount.Request) error {
		request.Options = slices.Clone(request.Options)
		change(&request)
		return m.Mounter.Mount(ctx, request)
	}
}

// swaps makes it take one option for another, or for none.
func (m *mutant) swaps(option, other string) {
	m.asks(func(r *mount.Request) {
		r.Options = slices.DeleteFunc(r.Options, func(o string) bool { return o == option && other == "" })
		for i, o := range r.Options {
			if o == option {
				r.Options[i] = other
			}
		}
	})
}

// prepares makes it do something at the target before it mounts.
func (m *mutant) prepares(do func(target string) error) {
	m.mount = func(ctx context.Context, request mount.Request) error {
		if err := do(request.Target); err != nil {
			return err
		}
		return m.Mounter.Mount(ctx, request)
	}
}

// follows makes it take a directory for the symbolic link to it.
func (m *mutant) follows(link, dir string) {
	through := func(name string) string { return strings.Replace(name, link, dir, 1) }
	m.asks(func(r *mount.Request) { r.Target = through(r.Target) })
	m.isMountPoint = func(ctx context.Context, name string) (bool, error) {
		return m.Mounter.IsMountPoint(ctx, through(name))
	}
}

// unmounts makes it unmount otherwise than it is asked to.
func (m *mutant) unmounts(change func(*mount.UnmountOptions)) {
	m.unmount = func(ctx context.Context, target string, options mount.UnmountOptions) error {
		change(&options)
		return m.Mounter.Unmount(ctx, target, options)
	}
}

func believesAnything(m *mutant) {
	m.unmounts(func(o *mount.UnmountOptions) { o.Expect = mount.Identity{} })
}

func isLazy(m *mutant) { m.unmounts(func(o *mount.UnmountOptions) { o.Lazy = true }) }

func emptiesTargets(m *mutant) {
	m.removeTarget = func(ctx context.Context, name string) error {
		_ = m.Remove(name + "/f")
		return m.Mounter.RemoveTarget(ctx, name)
	}
}

// needs fails where what the target needs is not there.
func (m *mutant) needs(of func(target string) string) {
	m.prepares(func(target string) error {
		_, err := m.Lstat(of(target))
		return err
	})
}

func itself(name string) string { return name }

// defects are the mutants, by the case that must catch each.
var defects = map[string]func(*mutant){
	"a bind may map the owners of what it shows": func(m *mutant) {
		m.asks(func(r *mount.Request) { r.IDMappings = mount.IDMappings{} })
	},
	"a tmpfs is mounted and taken off": func(m *mutant) {
		m.mount = func(context.Context, mount.Request) error { return nil }
	},
	"an exclusive mount is refused where one is": func(m *mutant) { m.asks(func(r *mount.Request) { r.Exclusive = false }) },
	"a bind shows the same files": func(m *mutant) {
		m.mount = func(ctx context.Context, r mount.Request) error { return m.Mounter.Mount(ctx, tmpfs(r.Target)) }
	},
	"a bind of a file shows that file": func(m *mutant) { m.prepares(func(target string) error { return m.Mkdir(target, 0o755) }) },
	"a bind within one filesystem is a mount point": func(m *mutant) {
		m.isMountPoint = func(ctx context.Context, name string) (bool, error) {
			found, err := m.Mounter.Lookup(ctx, name)
			return err == nil && found.Root == "/", nil
		}
	},
	"a read-only bind refuses writes and its source does not": func(m *mutant) { m.swaps("ro", "") },
	"a bind takes mounts below along only when recursive":     func(m *mutant) { m.swaps("rbind", "bind") },
	"options of the mount are in the table":                   func(m *mutant) { m.swaps("nodev", "") },
	"of options that exclude each other the last counts": func(m *mutant) {
		m.asks(func(r *mount.Request) { slices.Reverse(r.Options); r.Options = append(r.Options, "relatime") })
	},
	"a remount makes read-only and writable again":    func(m *mutant) { m.swaps("rw", "") },
	"a remount of a bind leaves its filesystem alone": func(m *mutant) { m.asks(unbound) },
	"a remount may be for the mounts below too":       func(m *mutant) { m.asks(flat) },
	"a remount that is refused changes nothing":       changesInPart,
	"a remount needs a mount":                         func(m *mutant) { m.mount = func(context.Context, mount.Request) error { return nil } },
	"a mount is looked up by its path":                func(m *mutant) { m.lookup = anyRoot(m) },
	"of stacked mounts the uppermost is looked up":    func(m *mutant) { m.lookup = undermost(m) },
	"an identity is that of one mount": func(m *mutant) {
		m.line = func(p mount.MountPoint) mount.MountPoint { p.UniqueID, p.ID = 7, 7; return p }
	},
	"the references of a mount":                                 func(m *mutant) { m.refs = func(name string, refs []string) []string { return append(refs, name) } },
	"a missing target is made":                                  func(m *mutant) { m.needs(itself) },
	"a target that was made is removed when the mount fails":    func(m *mutant) { m.prepares(func(target string) error { return m.Mkdir(target, 0o750) }) },
	"a target that was there stays when the mount fails":        removesTargets,
	"missing parents of the target are made":                    func(m *mutant) { m.needs(path.Dir) },
	"parents that were made are removed when the mount fails":   func(m *mutant) { m.prepares(func(target string) error { return m.MkdirAll(path.Dir(target), 0o750) }) },
	"a remount makes nothing":                                   func(m *mutant) { m.prepares(func(target string) error { return m.MkdirAll(target, 0o750) }) },
	"a target that is a symbolic link is refused":               func(m *mutant) { m.follows("/link", "/victim") },
	"a parent of the target that is a symbolic link is refused": func(m *mutant) { m.follows("/link/", "/victim/") },
	"a mount is not found by a path with a symbolic link":       func(m *mutant) { m.follows("/link/", "/dir/") },
	"odd names": func(m *mutant) {
		m.prepares(func(target string) error {
			if strings.Contains(target, `\`) {
				return fmt.Errorf("a name with a backslash: %w", mount.ErrInvalid)
			}
			return nil
		})
	},
	"stacked mounts are all taken off": func(m *mutant) {
		m.unmount = func(ctx context.Context, target string, options mount.UnmountOptions) error {
			below, err := undermost(m)(ctx, target)
			top, _ := m.Mounter.Lookup(ctx, target)
			err = errors.Join(err, m.Mounter.Unmount(ctx, target, options))
			if below.ID != top.ID {
				err = errors.Join(err, m.Mounter.Mount(ctx, tmpfs(target)))
			}
			return err
		}
	},
	"a stack that is taken off in part is uncertain": func(m *mutant) {
		m.unmount = func(ctx context.Context, target string, options mount.UnmountOptions) error {
			err := m.Mounter.Unmount(ctx, target, options)
			if errors.Is(err, syscall.EBUSY) {
				return syscall.EBUSY
			}
			return err
		}
	},
	"unmounting what is not mounted": func(m *mutant) {
		m.unmount = func(ctx context.Context, target string, options mount.UnmountOptions) error {
			err := m.Mounter.Unmount(ctx, target, options)
			if errors.Is(err, mount.ErrNotMounted) {
				return nil
			}
			return err
		}
	},
	"unmounting a mount that holds another is busy": isLazy,
	"a mount point is not removed": func(m *mutant) {
		m.removeTarget = func(ctx context.Context, name string) error {
			_ = m.Mounter.Unmount(ctx, name, plain)
			return m.Mounter.RemoveTarget(ctx, name)
		}
	},
	"only empty targets are removed": emptiesTargets,
	"cleaning up is repeatable": func(m *mutant) {
		m.removeTarget = func(ctx context.Context, name string) error {
			if _, err := m.Lstat(name); err != nil {
				return err
			}
			return m.Mounter.RemoveTarget(ctx, name)
		}
	},
	"cleaning up leaves files whole": emptiesTargets,
	"cleaning up may keep the target": func(m *mutant) {
		m.unmount = func(ctx context.Context, target string, options mount.UnmountOptions) error {
			return errors.Join(m.Mounter.Unmount(ctx, target, options), m.Remove(target))
		}
	},
	"the mount that is meant is taken off": func(m *mutant) {
		m.unmount = func(ctx context.Context, target string, options mount.UnmountOptions) error {
			if options.Expect != (mount.Identity{}) {
				return mount.ErrForeign
			}
			return m.Mounter.Unmount(ctx, target, options)
		}
	},
	"a foreign mount is reported and left alone":                  believesAnything,
	"a foreign mount on top is reported and nothing is taken off": believesAnything,
	"a foreign mount below stays and is reported":                 believesAnything,
	"what is known of a mount in part may fit several":            believesAnything,
	"a mount that is meant and busy stays":                        isLazy,
	"malformed requests are refused":                              func(m *mutant) { m.asks(func(r *mount.Request) { r.SELinuxContext = "" }) },
	"malformed paths are refused":                                 trimsPaths,
	"a user cannot say what kind of mount it is":                  func(m *mutant) { m.asks(trustUsers) },
	"a user cannot undo what the policy sets":                     func(m *mutant) { m.asks(trustUsers) },
	"an SELinux context is there or refused":                      func(m *mutant) { m.asks(func(r *mount.Request) { r.SELinuxContext = "" }) },
	"errors hold no secret":                                       tellsAll,
	"nothing is begun when the context has ended": func(m *mutant) {
		m.mount = func(ctx context.Context, request mount.Request) error {
			return m.Mounter.Mount(context.WithoutCancel(ctx), request)
		}
	},
}

// unbound takes the remount of a bind for one of its filesystem.
func unbound(r *mount.Request) {
	if slices.Contains(r.Options, "remount") {
		r.Options = slices.DeleteFunc(r.Options, func(o string) bool { return o == "bind" })
	}
}

// flat forgets the mounts below.
func flat(r *mount.Request) {
	for i, option := range r.Options {
		if option != "remount" && option != "rw" {
			r.Options[i] = strings.TrimPrefix(option, "r")
		}
	}
}

func changesInPart(m *mutant) {
	m.mount = func(ctx context.Context, request mount.Request) error {
		if n := len(request.Options) - 1; n > 0 {
			part := request
			part.Options = request.Options[:n]
			_ = m.Mounter.Mount(ctx, part)
		}
		return m.Mounter.Mount(ctx, request)
	}
}

func removesTargets(m *mutant) {
	m.mount = func(ctx context.Context, request mount.Request) error {
		err := m.Mounter.Mount(ctx, request)
		if err != nil {
			_ = m.Remove(request.Target)
		}
		return err
	}
}

// anyRoot does not tell which part of a filesystem is shown.
func anyRoot(m *mutant) func(context.Context, string) (mount.MountPoint, error) {
	return func(ctx context.Context, name string) (mount.MountPoint, error) {
		found, err := m.Mounter.Lookup(ctx, name)
		found.Root = "/"
		return found, err
	}
}

// undermost finds the mount that was made first.
func undermost(m *mutant) func(context.Context, string) (mount.MountPoint, error) {
	return func(ctx context.Context, name string) (mount.MountPoint, error) {
		table, err := m.Mounter.List(ctx)
		for _, found := range table {
			if found.Path == name {
				return found, err
			}
		}
		return mount.MountPoint{}, mount.ErrNotMounted
	}
}

// trustUsers takes what users ask for as what the policy does.
func trustUsers(r *mount.Request) {
	r.Options, r.UserOptions = slices.Concat(r.Options, r.UserOptions), nil
}

// trimsPaths makes something of any path.
func trimsPaths(m *mutant) {
	m.unmount = func(ctx context.Context, target string, options mount.UnmountOptions) error {
		return m.Mounter.Unmount(ctx, path.Clean("/"+target), options)
	}
}

func tellsAll(m *mutant) {
	m.mount = func(ctx context.Context, request mount.Request) error {
		if err := m.Mounter.Mount(ctx, request); err != nil {
			return fmt.Errorf("options %q: %w", request.Sensitive, err)
		}
		return nil
	}
}

// recorder is a test that keeps its failures to itself.
type recorder struct {
	testing.TB
	failures []string
	cleanUps []func()
}

func (r *recorder) Helper()          {}
func (r *recorder) Cleanup(f func()) { r.cleanUps = append(r.cleanUps, f) }

func (r *recorder) Errorf(format string, args ...any) {
	r.failures = append(r.failures, fmt.Sprintf(format, args...))
}

func (r *recorder) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	runtime.Goexit()
}

func (r *recorder) Fatal(args ...any) { r.Fatalf("%s", fmt.Sprint(args...)) }

// try runs one case on a mutant and returns what it reported.
func try(t *testing.T, c testCase, arrange func(*mutant)) []string {
	t.Helper()
	r := &recorder{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.run(newBench(r, Config{New: newMutant(arrange), Root: rootOf}))
	}()
	<-done
	for _, cleanUp := range slices.Backward(r.cleanUps) {
		cleanUp()
	}
	return r.failures
}

func newMutant(arrange func(*mutant)) func(testing.TB) (mount.Interface, World) {
	return func(testing.TB) (mount.Interface, World) {
		m := &mutant{Mounter: fake.NewMounter(fake.MounterOptions{SELinux: true})}
		arrange(m)
		return m, m.Mounter
	}
}

func rootOf(t testing.TB, w World) string {
	if err := w.Mkdir("/root", 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		t.Fatal(err)
	}
	return "/root"
}

func TestEachBrokenMounterIsCaughtByTheCaseForIt(t *testing.T) {
	for _, c := range cases() {
		t.Run(c.name, func(t *testing.T) {
			defect := defects[c.name]
			if defect == nil {
				defect = propagationDefects[c.name]
			}
			require.NotNil(t, defect, "a case that nothing has ever failed")
			assert.Empty(t, try(t, c, func(*mutant) {}), "a mounter without a defect")
			assert.NotEmpty(t, try(t, c, defect), "the defect was not seen")
		})
	}
}
