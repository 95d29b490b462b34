package mounttest

import (
	"context"
	"errors"
	"path"
	"slices"
	"strings"
	"syscall"

	"github.com/volumekit/volumekit/mount"
)

// propagationDefects are the mutants of propagation, by the case that must catch each.
var propagationDefects = map[string]func(*mutant){
	"a mount is private unless the request says otherwise": func(m *mutant) {
		m.asks(func(r *mount.Request) { r.Options = slices.Insert(r.Options, 0, "shared") })
	},
	"a shared bind joins the peer group of its source":           func(m *mutant) { m.makesFirst("bind", "private") },
	"peers show each other's mounts":                             func(m *mutant) { m.makesFirst("bind", "slave") },
	"a slave shows the mounts of its master and not the reverse": func(m *mutant) { m.swaps("slave", "shared") },
	"a slave may be shared too":                                  func(m *mutant) { m.makesFirst("remount", "private") },
	"a slave whose peer group is gone has the master of that":    remembersMasters,
	"a private mount shows no mounts of others":                  func(m *mutant) { m.swaps("private", "slave") },
	"an unbindable mount is not bound":                           func(m *mutant) { m.swaps("unbindable", "private") },
	"an unbindable bind is made below a shared mount": func(m *mutant) {
		m.mount = func(ctx context.Context, request mount.Request) error {
			if slices.Contains(request.Options, "bind") && slices.Contains(request.Options, "unbindable") {
				return syscall.EINVAL
			}
			return m.Mounter.Mount(ctx, request)
		}
	},
	"options may be for the mounts below and propagation not": func(m *mutant) {
		m.asks(func(r *mount.Request) {
			if i := slices.Index(r.Options, "shared"); i >= 0 && slices.Contains(r.Options, "rro") {
				r.Options[i] = "rshared"
			}
		})
	},
	"propagation may be for the mounts below too": func(m *mutant) { m.asks(flat) },
	"a tree that is mounted appears with what is below": func(m *mutant) {
		m.after("/source/sub", func(ctx context.Context) error { return m.Mounter.Unmount(ctx, "/root/slave/sub/below", plain) })
	},
	"a peer that shows a part has the mounts of that part": func(m *mutant) {
		m.after("/source/subway", func(ctx context.Context) error {
			bind := mount.Request{Source: "/root/source/subway", Target: "/root/part", Options: []string{"bind"}}
			return m.Mounter.Mount(ctx, bind)
		})
	},
	"a mount appears beneath what covers its place": func(m *mutant) {
		m.after("/master/sub", func(ctx context.Context) error { return m.Mounter.Mount(ctx, tmpfs("/root/slave/sub")) })
	},
	"a copy that bears another mount stays": func(m *mutant) {
		m.unmount = func(ctx context.Context, target string, options mount.UnmountOptions) error {
			copied := strings.Replace(target, "/master/", "/slave/", 1)
			lazy := m.Mounter.Unmount(ctx, copied, mount.UnmountOptions{Lazy: true})
			return errors.Join(lazy, m.Mounter.Unmount(ctx, target, options))
		}
	},
	"a tree that is detached goes everywhere": func(m *mutant) {
		m.unmount = func(ctx context.Context, target string, options mount.UnmountOptions) error {
			if err := m.makes(ctx, path.Dir(target), "private"); options.Lazy && err != nil {
				return err
			}
			return m.Mounter.Unmount(ctx, target, options)
		}
	},
}

// makes changes the propagation of a mount.
func (m *mutant) makes(ctx context.Context, target, propagation string) error {
	return m.Mounter.Mount(ctx, mount.Request{Target: target, Options: []string{"remount", propagation}})
}

// makesFirst makes it give a mount that is to be shared another propagation before that, when the request has the option.
func (m *mutant) makesFirst(option, propagation string) {
	m.mount = func(ctx context.Context, request mount.Request) error {
		if !slices.Contains(request.Options, option) || !slices.Contains(request.Options, "shared") {
			return m.Mounter.Mount(ctx, request)
		}
		first := request
		first.Options = append(slices.Clone(request.Options), propagation)
		if err := m.Mounter.Mount(ctx, first); err != nil {
			return err
		}
		return m.makes(ctx, request.Target, "shared")
	}
}

// after makes it do something more after a mount at the target.
func (m *mutant) after(target string, do func(context.Context) error) {
	m.mount = func(ctx context.Context, request mount.Request) error {
		err := m.Mounter.Mount(ctx, request)
		if err == nil && strings.HasSuffix(request.Target, target) {
			err = do(ctx)
		}
		return err
	}
}

// remembersMasters makes it tell of the first master that a mount had.
func remembersMasters(m *mutant) {
	first := map[uint64][]string{}
	m.line = func(p mount.MountPoint) mount.MountPoint {
		if known := first[p.UniqueID]; known != nil {
			p.Propagation = known
		} else if len(p.Propagation) == 1 && strings.HasPrefix(p.Propagation[0], "master:") {
			first[p.UniqueID] = p.Propagation
		}
		return p
	}
}
