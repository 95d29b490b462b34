package volumemanager

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/volume"
)

// touchyPlugin makes mounters that panic when they are asked what they made.
type touchyPlugin struct {
	volume.VolumePlugin
	panics bool
}

func (p *touchyPlugin) GetPluginName() string { return "example.com/touchy" }
func (p *touchyPlugin) CanSupport(spec *volume.Spec) bool {
	return spec.Volume != nil && spec.Volume.EmptyDir != nil
}
func (p *touchyPlugin) NewMounter(spec *volume.Spec, pod *v1.Pod) (volume.Mounter, error) {
	spec = volume.NewSpecFromVolume(&v1.Volume{Name: spec.Name(), VolumeSource: v1.VolumeSource{CSI: &v1.CSIVolumeSource{Driver: testDriver}}})
	mounter, err := p.VolumePlugin.NewMounter(spec, pod)
	return &touchyMounter{Mounter: mounter, plugin: p}, err
}

type touchyMounter struct {
	volume.Mounter
	plugin *touchyPlugin
}

func (m *touchyMounter) GetAttributes() volume.Attributes {
	if m.plugin.panics {
		panic(errTouchy)
	}
	return m.Mounter.GetAttributes()
}

func (m *touchyMounter) GetPath() string {
	_ = m.GetAttributes()
	return m.Mounter.GetPath()
}

var errTouchy = errors.New("do not touch")

func TestNoQueryCallsAPlugin(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		m := w.start()
		touchy := &touchyPlugin{VolumePlugin: w.plugin}
		require.NoError(t, w.plugins.InitPlugins(t.Context(), touchy))
		pod := podOf("web", "-scratch")
		pod.Spec.Volumes[0].VolumeSource = v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}
		w.add(pod)
		touchy.panics = true
		volumes := m.GetMountedVolumesForPod(volume.GetUniquePodName(pod))
		assert.IsType(t, &touchyMounter{}, volumes["scratch"].Mounter, "it is the plugin's own")
		assert.NotEmpty(t, volumes["scratch"].Path)
		assert.Equal(t, volumes["scratch"].Path, m.Status().Volumes[0].Path)
		require.NoError(t, m.WaitForAttachAndMount(t.Context(), pod))
	})
}

// attributesPanic panics in GetAttributes, which is not called before the set-up.
type attributesPanic struct{ volume.Mounter }

func (attributesPanic) GetAttributes() volume.Attributes { panic(errTouchy) }

func TestAMounterThatCannotBeAskedHasNotSetUp(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		m := w.start()
		require.NoError(t, w.plugins.InitPlugins(t.Context(), &panickyPlugin{touchyPlugin{VolumePlugin: w.plugin}}))
		pod := podOf("web", "-scratch")
		pod.Spec.Volumes[0].VolumeSource = v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}
		require.NoError(t, m.AddPod(t.Context(), pod))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := m.WaitForAttachAndMount(ctx, pod)
		require.ErrorIs(t, err, errTouchy)
		var panicked *volume.PanicError
		require.ErrorAs(t, err, &panicked)
		assert.NotEmpty(t, panicked.Stack)
		assert.Empty(t, m.GetMountedVolumesForPod(volume.GetUniquePodName(pod)))
		w.remove(pod)
		w.isClean()
	})
}

type panickyPlugin struct{ touchyPlugin }

func (p *panickyPlugin) NewMounter(spec *volume.Spec, pod *v1.Pod) (volume.Mounter, error) {
	mounter, err := p.touchyPlugin.NewMounter(spec, pod)
	return attributesPanic{mounter}, err
}
