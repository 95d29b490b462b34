package volumetest

import (
	"context"
	"io/fs"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/volume"
)

// TestALockThatIsMissingIsCaughtEachTime, and not sometimes.
func TestALockThatIsMissingIsCaughtEachTime(t *testing.T) {
	mutants := defects()
	for _, rule := range []string{"M5", "M9"} {
		for range 24 {
			broken := try(t, ruleOf(t, rule), mutantConfig(mutants[rule]))
			require.NotEmpty(t, broken.failures)
			assert.Contains(t, broken.failures[0], "rule "+rule+" is broken: ")
		}
	}
}

func TestAPanicFailsItsCaseAndNotTheRun(t *testing.T) {
	for says, arrange := range map[string]func(m *mutant){
		"the plugin panicked: in SetUp": alsoDo(func(context.Context, volume.Mounter) error { panic("in SetUp") }),
		"the plugin panicked: in NewMounter": func(m *mutant) {
			m.mounter = func(volume.Mounter, *volume.Spec) volume.Mounter { panic("in NewMounter") }
		},
	} {
		broken := try(t, ruleOf(t, "M1"), mutantConfig(arrange))
		require.Len(t, broken.failures, 1)
		assert.Contains(t, broken.failures[0], says)
		assert.Contains(t, broken.failures[0], "rule M1 is broken: ")
	}
	// In a goroutine of the suite too.
	broken := try(t, ruleOf(t, "M5"), mutantConfig(alsoDo(func(context.Context, volume.Mounter) error { panic("in SetUp") })))
	require.NotEmpty(t, broken.failures)
	assert.Contains(t, broken.failures[0], "in SetUp")
}

// misspelt is a plugin whose author has forgotten the error of NewDeleter.
type misspelt struct{ volume.VolumePlugin }

func (misspelt) NewDeleter(*volume.Spec) volume.Deleter { return nil }

func TestAMethodWithAnotherSignatureIsNamed(t *testing.T) {
	config := fakeConfig(fake.NewMounter(fake.MounterOptions{}), 0)
	config.RootDir = "/node"
	sound := config.NewPlugin
	r := &recorder{TB: t}
	checkRequired(r, config)
	assert.Empty(t, r.failures)
	config.NewPlugin = func(t testing.TB) volume.VolumePlugin { return misspelt{sound(t)} }
	checkRequired(r, config)
	require.Len(t, r.failures, 1)
	assert.Contains(t, r.failures[0], "NewDeleter exists with another signature: it is func(*volume.Spec) volume.Deleter, "+
		"and volume.DeletableVolumePlugin has func(*volume.Spec) (volume.Deleter, error)")
}

func TestAPersistentPluginMustSayHowLongItsContentLasts(t *testing.T) {
	config := mutantConfig(nil)
	config.Lifetime = LifetimeUnknown
	broken := try(t, ruleOf(t, "U5"), config)
	require.Len(t, broken.failures, 1)
	assert.Contains(t, broken.failures[0], "Config.Lifetime does not say whether its content outlives the pod")
}

// unmeasured is a mounter that cannot measure, for a reason.
type unmeasured struct {
	volume.Mounter
	reason error
}

func (u unmeasured) GetMetrics(context.Context) (*volume.Metrics, error) {
	return nil, &fs.PathError{Op: "statfs", Path: u.GetPath(), Err: u.reason}
}

// TestAPathOfTheMachineThatCannotBeMeasuredFailsNoCaseOnFakes: it may be missing, or another user's, and is not the volume's.
func TestAPathOfTheMachineThatCannotBeMeasuredFailsNoCaseOnFakes(t *testing.T) {
	for reason, fails := range map[error]bool{fs.ErrNotExist: false, fs.ErrPermission: false, fs.ErrInvalid: true} {
		for _, rule := range []string{"X1", "X2"} {
			result := try(t, ruleOf(t, rule), mutantConfig(func(m *mutant) {
				m.mounter = func(made volume.Mounter, _ *volume.Spec) volume.Mounter { return unmeasured{made, reason} }
			}))
			assert.Equal(t, fails, len(result.failures) > 0, "%s: %v: %v", rule, reason, result.failures)
		}
	}
}

func TestParametersAreThoseOfTheClass(t *testing.T) {
	config := mutantConfig(nil)
	config.NewSpec, config.Parameters = nil, map[string]string{volume.VolumeParameterFSType: "ext4"}
	e := newEnv(t, Case{}, config)
	assert.Equal(t, config.Parameters, e.volumeOptions().Parameters)
	pv := e.provision(e.volumeOptions())
	assert.Equal(t, "ext4", pv.Spec.CSI.FSType)
}

func TestADescriptorOfAnyFileIsNamedByItsCase(t *testing.T) {
	var open []*os.File
	defer func() {
		for _, file := range open {
			require.NoError(t, file.Close())
		}
	}()
	broken := try(t, ruleOf(t, "M1"), mutantConfig(alsoDo(func(context.Context, volume.Mounter) error {
		file, err := os.Open(os.DevNull)
		open = append(open, file)
		return err
	})))
	require.Len(t, broken.failures, 1)
	assert.Contains(t, broken.failures[0], "case mount/M1 SetUp makes the volume usable leaves goroutines or descriptors:\n")
	assert.Contains(t, broken.failures[0], os.DevNull)
	assert.Contains(t, broken.failures[0], "rule L2 is broken: ")
}
