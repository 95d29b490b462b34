package volumetest

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/volume"
)

// again makes a mutant do something in the set-up of a volume that is set up already.
func again(do func(ctx context.Context, m *mutant, path string) error) func(*mutant) func(volume.Mounter, *volume.Spec) volume.Mounter {
	return func(m *mutant) func(volume.Mounter, *volume.Spec) volume.Mounter {
		return withSetUp(func(ctx context.Context, made volume.Mounter, args volume.MounterArgs) error {
			mounted, err := m.world.IsMountPoint(ctx, made.GetPath())
			if err := made.SetUp(ctx, args); err != nil || !mounted {
				return err
			}
			if err != nil {
				return err
			}
			return do(ctx, m, made.GetPath())
		})
	}
}

// knowsLater is a mounter that knows what it has made once SetUp has told it.
type knowsLater struct {
	volume.Mounter
	done bool
}

func (k *knowsLater) SetUp(ctx context.Context, args volume.MounterArgs) error {
	k.done = true
	return k.Mounter.SetUp(ctx, args)
}

func (k *knowsLater) GetAttributes() volume.Attributes {
	return volume.Attributes{Managed: k.done}
}

// TestAPluginThatMustBeSetUpAgainAndSaysOtherwiseIsCaught by what the second set-up changes.
func TestAPluginThatMustBeSetUpAgainAndSaysOtherwiseIsCaught(t *testing.T) {
	setUp := func(do func(ctx context.Context, m *mutant, path string) error) func(*mutant) {
		return func(m *mutant) { m.mounter = again(do)(m) }
	}
	for defect, arrange := range map[string]func(*mutant){
		"the mode of the root": setUp(func(_ context.Context, m *mutant, path string) error { return m.world.Chmod(path, 0o700) }),
		"the mode of a file":   setUp(func(_ context.Context, m *mutant, path string) error { return m.world.Chmod(path+"/file", 0o600) }),
		"content": setUp(func(_ context.Context, m *mutant, path string) error {
			return m.world.WriteFile(path+"/file", []byte("other"), 0o644)
		}),
		"a new file": setUp(func(_ context.Context, m *mutant, path string) error {
			return m.world.WriteFile(path+"/more", nil, 0o644)
		}),
		"the options of the mount": setUp(func(ctx context.Context, m *mutant, path string) error {
			return m.world.Mount(ctx, mount.Request{Target: path, Options: []string{"bind", "remount", "noexec"}})
		}),
		"the mount": func(m *mutant) {
			m.mounter = withSetUp(func(ctx context.Context, made volume.Mounter, args volume.MounterArgs) error {
				if err := m.world.Unmount(ctx, made.GetPath(), mount.UnmountOptions{}); err != nil && !errors.Is(err, mount.ErrNotMounted) {
					return err
				}
				return made.SetUp(ctx, args)
			})
		},
		"what the mounter says": func(m *mutant) {
			m.mounter = func(made volume.Mounter, _ *volume.Spec) volume.Mounter { return &knowsLater{Mounter: made} }
		},
	} {
		t.Run(defect, func(t *testing.T) {
			broken := try(t, ruleOf(t, "M17"), mutantConfig(arrange))
			require.NotEmpty(t, broken.failures, "the defect was not seen (%s)", broken.skipped)
			assert.Contains(t, broken.failures[0], "rule M17 is broken: ")
		})
	}
}
