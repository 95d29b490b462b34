package files

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/volume"
)

// objects are all getters, on maps by namespace/name.
type objects struct {
	configMaps map[string]*v1.ConfigMap
	secrets    map[string]*v1.Secret
	// down is the error of every getter, when it is set.
	down error
}

func get[T any](o *objects, from map[string]*T, namespace, name string) (*T, error) {
	found, ok := from[namespace+"/"+name]
	switch {
	case o.down != nil:
		return nil, o.down
	case !ok:
		return nil, fmt.Errorf("%s in %s: %w", name, namespace, ErrNotFound)
	}
	return found, nil
}

func (o *objects) ConfigMap(_ context.Context, namespace, name string) (*v1.ConfigMap, error) {
	return get(o, o.configMaps, namespace, name)
}

func (o *objects) Secret(_ context.Context, namespace, name string) (*v1.Secret, error) {
	return get(o, o.secrets, namespace, name)
}

func (o *objects) ServiceAccountToken(_ context.Context, pod *v1.Pod, source v1.ServiceAccountTokenProjection) (string, error) {
	return secretText + " of " + pod.Spec.ServiceAccountName + " for " + source.Audience, o.down
}

func (o *objects) TrustBundle(_ context.Context, source v1.ClusterTrustBundleProjection) ([]byte, error) {
	if *source.Name == "missing" {
		return nil, ErrNotFound
	}
	return []byte("-----BEGIN CERTIFICATE-----"), o.down
}

func (o *objects) Allocatable(context.Context) (v1.ResourceList, error) {
	return v1.ResourceList{v1.ResourceCPU: resource.MustParse("4"), v1.ResourceMemory: resource.MustParse("1Gi")}, o.down
}

// secretText is in each secret, and must be nowhere else.
const secretText = "hunter2-and-some-more"

func newObjects() *objects {
	return &objects{
		configMaps: map[string]*v1.ConfigMap{"default/config": {
			Data: map[string]string{"app.conf": "a=1\n", "other": "x"}, BinaryData: map[string][]byte{"blob": {0, 255}},
		}},
		secrets: map[string]*v1.Secret{"default/login": {
			Data: map[string][]byte{"password": []byte(secretText), "..bad": []byte(secretText)},
		}},
	}
}

func newPod() *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: "web", Namespace: "default", UID: "pod-1",
			Labels:      map[string]string{"app": "web", "a": "\"quoted\"\n"},
			Annotations: map[string]string{"example.com/note": "hello"},
		},
		Spec: v1.PodSpec{
			ServiceAccountName: "robot",
			Containers: []v1.Container{{Name: "c", Resources: v1.ResourceRequirements{
				Limits:   v1.ResourceList{v1.ResourceMemory: resource.MustParse("100Mi")},
				Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse("1250m")},
			}}},
			InitContainers: []v1.Container{{Name: "init"}},
		},
	}
}

func inVolume(source v1.VolumeSource) *volume.Spec {
	return volume.NewSpecFromVolume(&v1.Volume{Name: "files", VolumeSource: source})
}

func configMap(name string, items ...v1.KeyToPath) *v1.ConfigMapVolumeSource {
	return &v1.ConfigMapVolumeSource{LocalObjectReference: v1.LocalObjectReference{Name: name}, Items: items}
}

func projected(sources ...v1.VolumeProjection) *volume.Spec {
	return inVolume(v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{Sources: sources}})
}

func allOf(o *objects) Getters {
	return Getters{ConfigMaps: o, Secrets: o, Tokens: o, TrustBundles: o, Node: o}
}

// start registers a plugin on a node in a directory of the test.
func start(t *testing.T, plugin *Plugin) *Plugin {
	t.Helper()
	host, err := volume.NewHost(volume.HostOptions{RootDir: t.TempDir() + "/node", NodeName: "node-1"})
	require.NoError(t, err)
	require.NoError(t, volume.NewVolumePluginMgr(host).InitPlugins(t.Context(), plugin))
	return plugin
}

func ptr[T any](v T) *T { return &v }
