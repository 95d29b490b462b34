package files

import (
	"fmt"
	"maps"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volume/volumetest"
)

// editions are objects of which each volume of the suite has one of its own, named as the volume is, that can change.
type editions struct {
	*objects
	made int
	of   map[string]int // by name
}

func newEditions() *editions { return &editions{objects: newObjects(), of: map[string]int{}} }

func (e *editions) text(name string) string { return fmt.Sprintf("edition %d of %s", e.of[name], name) }

// edit makes the next edition.
func (e *editions) edit(name string) {
	e.of[name]++
	e.configMaps["default/"+name] = &v1.ConfigMap{Data: map[string]string{"text": e.text(name)}}
	e.secrets["default/"+name] = &v1.Secret{Data: map[string][]byte{"text": []byte(e.text(name))}}
}

func (e *editions) newVolume(source func(name string) v1.VolumeSource) *volume.Spec {
	e.made++
	name := fmt.Sprintf("files-%d", e.made)
	e.edit(name)
	return volume.NewSpecFromVolume(&v1.Volume{Name: name, VolumeSource: source(name)})
}

// podName shows the name of the pod.
func podName() []v1.DownwardAPIVolumeFile {
	return []v1.DownwardAPIVolumeFile{{Path: "of/pod", FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.name"}}}
}

// text and nameOfPod are what volumes hold.
func (e *editions) textOf(spec *volume.Spec, _ *v1.Pod) map[string]string {
	return map[string]string{"text": e.text(spec.Name())}
}

func nameOfPod(_ *volume.Spec, pod *v1.Pod) map[string]string {
	return map[string]string{"of/pod": pod.Name}
}

// conformances are what the suite is told of each plugin.
func conformances() map[string]func(Options) volumetest.Config {
	e := newEditions()
	change := func(_ testing.TB, spec *volume.Spec) { e.edit(spec.Name()) }
	config := func(newPlugin func() *Plugin, source func(name string) v1.VolumeSource) volumetest.Config {
		return volumetest.Config{
			NewPlugin: func(testing.TB) volume.VolumePlugin { return newPlugin() },
			NewSpec:   func(testing.TB) *volume.Spec { return e.newVolume(source) },
			Content:   e.textOf, ChangeContent: change,
			Require: volume.CapRemount | volume.CapReconstruct,
		}
	}
	return map[string]func(Options) volumetest.Config{
		"configMap": func(o Options) volumetest.Config {
			c := config(func() *Plugin { return NewConfigMap(e, o) }, func(name string) v1.VolumeSource {
				return v1.VolumeSource{ConfigMap: configMap(name)}
			})
			c.PlainDirectory = true
			return c
		},
		"secret": func(o Options) volumetest.Config {
			return config(func() *Plugin { return NewSecret(e, o) }, func(name string) v1.VolumeSource {
				return v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: name}}
			})
		},
		"downwardAPI": func(o Options) volumetest.Config {
			c := config(func() *Plugin { return NewDownwardAPI(e, o) }, func(string) v1.VolumeSource {
				return v1.VolumeSource{DownwardAPI: &v1.DownwardAPIVolumeSource{Items: podName()}}
			})
			c.Content, c.ChangeContent = nameOfPod, nil
			return c
		},
		"projected": func(o Options) volumetest.Config {
			getters := Getters{ConfigMaps: e, Secrets: e, Tokens: e, TrustBundles: e, Node: e}
			c := config(func() *Plugin { return NewProjected(getters, o) }, func(name string) v1.VolumeSource {
				return projected(
					v1.VolumeProjection{Secret: &v1.SecretProjection{LocalObjectReference: v1.LocalObjectReference{Name: name}}},
					v1.VolumeProjection{DownwardAPI: &v1.DownwardAPIProjection{Items: podName()}},
				).Volume.VolumeSource
			})
			c.Content = func(spec *volume.Spec, pod *v1.Pod) map[string]string {
				content := e.textOf(spec, pod)
				maps.Copy(content, nameOfPod(spec, pod))
				return content
			}
			return c
		},
	}
}

func TestConformanceOnFakes(t *testing.T) {
	for name, newConfig := range conformances() {
		t.Run(name, func(t *testing.T) {
			world := fake.NewMounter(fake.MounterOptions{})
			config := newConfig(Options{Mounter: volumetest.Yielding(world), Directories: world})
			config.World, config.RootDir = world, "/node"
			volumetest.Run(t, config)
			table, err := world.List(t.Context())
			require.NoError(t, err)
			require.Len(t, table, 1, "the root alone")
		})
	}
}

// TestOnFakesNoPathOfTheMachineIsMeasured, although there is one by the name of the volume's.
func TestOnFakesNoPathOfTheMachineIsMeasured(t *testing.T) {
	for name, newConfig := range conformances() {
		t.Run(name, func(t *testing.T) {
			world := fake.NewMounter(fake.MounterOptions{})
			config := newConfig(Options{Mounter: world, Directories: world})
			plugin, ok := config.NewPlugin(t).(*Plugin)
			require.True(t, ok)
			start(t, plugin)
			pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "uid-1"}}
			mounter, err := plugin.NewMounter(config.NewSpec(t), pod)
			require.NoError(t, err)
			require.NoError(t, os.MkdirAll(mounter.GetPath(), 0o755))
			_, err = mounter.GetMetrics(t.Context())
			require.ErrorIs(t, err, volume.ErrUnsupported)
		})
	}
}
