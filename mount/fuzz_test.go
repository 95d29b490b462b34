package mount

import (
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzPlan holds what everybody who mounts relies on: nothing gets through that is more than one option, what a plan says
// means the same plan again, and no error holds a secret. Options are parted by bars.
func FuzzPlan(f *testing.F) {
	type seed struct{ source, target, fsType, options, user, context, secret string }
	for _, s := range []seed{
		{"server:/export", "/t//x/", "nfs", "ro|nosuid|vers=4.2|suid|defaults|hard|_netdev|rslave|noatime|atime|ro", "rw|soft", "", "a,b"},
		{"/s", "/t", "", "rbind|rro|rw|noexec|shared", "nodev|dev", "", ""},
		{"", "/t", "", "remount|bind|ro|relatime|noatime", "", "", ""},
		{"none", "/t", "tmpfs", "size=1k|mode=0,uid=0|a\nb||", "bind", "system_u:object_r:t:s0:c1,c2", "\n"},
		{"/s/../x", "/..", "a/b", "rrbind|rprivate|rremount|r", "context=x|uid=0", "\"", "="},
	} {
		f.Add(s.source, s.target, s.fsType, s.options, s.user, s.context, s.secret)
	}
	const marker = "hunter2-QZX"
	f.Fuzz(func(t *testing.T, source, target, fsType, options, user, context, secret string) {
		r := Request{
			Source: source, Target: target, FSType: fsType, Options: parted(options), UserOptions: parted(user),
			SELinuxContext: context,
		}
		if secret != "" {
			r.Sensitive = []string{"password=" + marker + secret, marker}
		}
		given := slices.Clone(r.Sensitive)
		p, err := r.Plan()
		require.Equal(t, given, r.Sensitive, "the request is its owner's")
		if err != nil {
			require.ErrorIs(t, err, ErrInvalid)
			if !strings.Contains(source+target+fsType+options+user+context, marker) {
				require.NotContains(t, err.Error(), marker)
			}
			return
		}
		requireSound(t, r, p)
		requireSamePlan(t, p, rebuilt(p, r.Sensitive))
	})
}

func parted(options string) []string {
	if options == "" {
		return nil
	}
	return strings.Split(options, "|")
}

func requireSound(t *testing.T, r Request, p Plan) {
	t.Helper()
	require.True(t, path.IsAbs(p.Target) && p.Target != "/" && path.Clean(p.Target) == p.Target, "%q", p.Target)
	require.NotContains(t, strings.Split(r.Target, "/"), "..")
	public := p.Data[:len(p.Data)-len(r.Sensitive)]
	require.Equal(t, r.Sensitive, append([]string(nil), p.Data[len(public):]...))
	for _, option := range slices.Concat(p.Set, p.Clear, public) {
		require.NotEmpty(t, option)
		require.False(t, strings.Contains(option, ",") || hasControl(option), "%q", option)
	}
	for _, option := range r.Sensitive {
		require.False(t, hasControl(option))
		require.NotContains(t, p.scrub("error near "+option+" "+option), option)
	}
	for _, option := range p.Set {
		require.NotContains(t, p.Clear, option)
	}
	times := slices.DeleteFunc(slices.Clone(p.Set), func(o string) bool { return !slices.Contains(accessTimes, o) })
	require.LessOrEqual(t, len(times), 1)
	if p.Bind {
		require.Empty(t, p.FSType)
		require.Empty(t, p.Data)
	}
	for _, option := range r.UserOptions {
		require.NotContains(t, []string{"bind", "rbind", "remount"}, option)
	}
}

// rebuilt is a request that says what p says.
func rebuilt(p Plan, sensitive []string) Request {
	r := Request{
		Source: p.Source, Target: p.Target, FSType: p.FSType, SELinuxContext: p.SELinuxContext, Sensitive: sensitive,
		Options: slices.Clone(p.Data[:len(p.Data)-len(sensitive)]),
	}
	prefix := ""
	if p.Below && !p.Recursive {
		prefix = "r"
	}
	for _, option := range p.Set {
		r.Options = append(r.Options, prefix+option)
	}
	for _, option := range p.Clear {
		for word, change := range mountOptions {
			if change == "-"+option {
				r.Options = append(r.Options, prefix+word)
			}
		}
	}
	switch {
	case p.Recursive:
		r.Options = append(r.Options, "rbind")
	case p.Bind:
		r.Options = append(r.Options, "bind")
	}
	if p.Remount {
		r.Options = append(r.Options, "remount")
	}
	if p.Propagation != "" {
		r.Options = append(r.Options, p.Propagation)
	}
	return r
}

func requireSamePlan(t *testing.T, p Plan, r Request) {
	t.Helper()
	again, err := r.Plan()
	require.NoError(t, err)
	for _, list := range [][2][]string{{p.Set, again.Set}, {p.Clear, again.Clear}, {p.Data, again.Data}, {p.secrets, again.secrets}} {
		require.ElementsMatch(t, list[0], list[1])
	}
	p.Set, p.Clear, p.Data, p.public, p.secrets = nil, nil, nil, nil, nil
	again.Set, again.Clear, again.Data, again.public, again.secrets = nil, nil, nil, nil, nil
	require.Equal(t, p, again)
}
