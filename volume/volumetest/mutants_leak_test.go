package volumetest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/loop"
	"github.com/volumekit/volumekit/mount/mounttest"
	"github.com/volumekit/volumekit/volume"
)

// ruleOf returns the case of a rule.
func ruleOf(t *testing.T, rule string) Case {
	t.Helper()
	for _, c := range Cases() {
		if c.Rule == rule {
			return c
		}
	}
	require.Fail(t, "no case has the rule "+rule)
	return Case{}
}

// alsoDo is a plugin whose SetUp does more than it should.
func alsoDo(more func(ctx context.Context, made volume.Mounter) error) func(*mutant) {
	return func(m *mutant) {
		m.mounter = withSetUp(func(ctx context.Context, made volume.Mounter, args volume.MounterArgs) error {
			return errors.Join(made.SetUp(ctx, args), more(ctx, made))
		})
	}
}

// TestEveryKindOfThingThatIsLeftIsSeen leaves one thing of each kind, in memory and on the machine; that goroutines are seen is
// shown by the defect of rule L1.
func TestEveryKindOfThingThatIsLeftIsSeen(t *testing.T) {
	for says, arrange := range map[string]func(m *mutant){
		`".lock" is left in the pod's directory of volumes`: func(m *mutant) {
			alsoDo(func(_ context.Context, made volume.Mounter) error {
				return m.world.WriteFile(filepath.Join(filepath.Dir(made.GetPath()), ".lock"), nil, 0o600)
			})(m)
		},
		"1 mounts are left, the first at": func(m *mutant) {
			alsoDo(func(ctx context.Context, made volume.Mounter) error {
				aside := filepath.Dir(filepath.Dir(made.GetPath())) + "/aside"
				return m.world.Mount(ctx, mount.Request{Source: "tmpfs", Target: aside, FSType: "tmpfs"})
			})(m)
		},
		"/mounts/": func(m *mutant) { m.device = func(d device) device { return leaving{d, m.world} } },
	} {
		broken := try(t, ruleOf(t, "L1"), mutantConfig(arrange))
		require.NotEmpty(t, broken.failures, says)
		assert.Contains(t, broken.failures[0], says)
		assert.Contains(t, broken.failures[0], "rule L1 is broken: ")
	}
}

// leaving is a device that leaves its directory.
type leaving struct {
	device
	world *fake.Mounter
}

func (l leaving) UnmountDevice(ctx context.Context, path string) error {
	return errors.Join(l.device.UnmountDevice(ctx, path), l.world.MkdirAll(path, 0o750))
}

// onMachine is a plugin over the mounts of the kernel that does more than it should.
func onMachine(more func(ctx context.Context, made volume.Mounter) error) Config {
	config := fakeConfig(mount.New(mount.Options{}), 0)
	sound := config.NewPlugin
	config.NewPlugin = func(t testing.TB) volume.VolumePlugin {
		plugin, _ := sound(t).(*fake.Plugin)
		m := &mutant{Plugin: plugin}
		alsoDo(more)(m)
		return m
	}
	config.leakTimeout = shortTimeout
	return config
}

func TestAnOpenFileThatIsLeftIsSeen(t *testing.T) {
	mounttest.RequireMounts(t)
	var open []*os.File
	t.Run("case", func(t *testing.T) { // whose directory is removed before the file is closed
		broken := try(t, ruleOf(t, "L1"), onMachine(func(_ context.Context, made volume.Mounter) error {
			file, err := os.Open(filepath.Dir(filepath.Dir(filepath.Dir(made.GetPath()))))
			open = append(open, file)
			return err
		}))
		require.NotEmpty(t, broken.failures)
		assert.Contains(t, broken.failures[0], "open files are left: ")
	})
	for _, file := range open {
		require.NoError(t, file.Close())
	}
}

func TestALoopDeviceThatIsLeftIsSeen(t *testing.T) {
	mounttest.RequireRoot(t)
	loops := loop.New(loop.Options{})
	var left []loop.Device
	broken := try(t, ruleOf(t, "L1"), onMachine(func(ctx context.Context, made volume.Mounter) error {
		image := filepath.Join(filepath.Dir(filepath.Dir(filepath.Dir(made.GetPath()))), "image")
		if err := os.WriteFile(image, make([]byte, 1<<20), 0o600); err != nil {
			return err
		}
		device, err := loops.Attach(ctx, image, loop.AttachOptions{})
		left = append(left, device)
		return err
	}))
	for _, device := range left {
		require.NoError(t, loops.Detach(t.Context(), device))
	}
	require.NotEmpty(t, broken.failures)
	assert.Contains(t, broken.failures[0], "loop devices are left: ")
}

// TestASecretIsSeenWhereverItIsTold has plugins that tell a secret in one place each; that of an error of SetUp is the defect
// of rule T1.
func TestASecretIsSeenWhereverItIsTold(t *testing.T) {
	secretOf := func(spec *volume.Spec) string { return fmt.Sprint(volume.MountOptionFromSpec(spec)) }
	for says, arrange := range map[string]func(m *mutant){
		"what GetPath returned contains it": func(m *mutant) {
			m.mounter = func(made volume.Mounter, spec *volume.Spec) volume.Mounter {
				return elsewhere{made, made.GetPath() + secretOf(spec)}
			}
		},
		"what an event of Recycle returned contains it": func(m *mutant) {
			m.recycled = func(spec *volume.Spec) string { return "recycled with " + secretOf(spec) }
		},
		"the error of Provision contains it": func(m *mutant) {
			m.provisioner = func(o volume.VolumeOptions) volume.VolumeOptions {
				parameters := o.Parameters
				m.provision = func(context.Context, volume.Provisioner) (*v1.PersistentVolume, error) {
					return nil, fmt.Errorf("parameters %v are not known", parameters)
				}
				o.Parameters, o.MountOptions = nil, nil
				return o
			}
		},
	} {
		broken := try(t, ruleOf(t, "T1"), mutantConfig(arrange))
		require.NotEmpty(t, broken.failures, says)
		assert.Contains(t, broken.failures[0], says)
		assert.NotContains(t, broken.failures[0], "Secret-", "the suite tells it no further")
	}
}

// elsewhere is a mounter with another path.
type elsewhere struct {
	volume.Mounter
	path string
}

func (e elsewhere) GetPath() string { return e.path }
