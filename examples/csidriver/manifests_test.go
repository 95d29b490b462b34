package main

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"

	"github.com/volumekit/volumekit/plugins/loopblock"
)

// Every field of the manifests is one that Kubernetes knows, of the type that it wants.
func TestManifestsAreThoseOfKubernetes(t *testing.T) {
	kinds := map[string]int{}
	for _, object := range manifests(t) {
		kinds[object.GetObjectKind().GroupVersionKind().Kind]++
		switch o := object.(type) {
		case *storagev1.CSIDriver:
			assert.Equal(t, loopblock.Driver, o.Name)
		case *storagev1.StorageClass:
			assert.Equal(t, loopblock.Driver, o.Provisioner)
		case *volumeSnapshotClass:
			assert.Equal(t, loopblock.Driver, o.Driver)
			assert.Contains(t, []string{"Delete", "Retain"}, o.DeletionPolicy)
		}
	}
	assert.Equal(t, map[string]int{
		"CSIDriver": 1, "StorageClass": 1, "VolumeSnapshotClass": 1, "ServiceAccount": 2, "ClusterRole": 2, "ClusterRoleBinding": 2,
		"DaemonSet": 1, "Deployment": 1,
	}, kinds)
}

// Snapshots of a node's volumes are made on that node; a driver that every machine can reach makes them in one place.
func TestTheDriverHasASnapshotter(t *testing.T) {
	for _, object := range manifests(t) {
		switch o := object.(type) {
		case *appsv1.DaemonSet:
			c := container(t, o.Spec.Template.Spec, "snapshotter")
			assert.Equal(t, []string{"--csi-address=/csi/csi.sock", "--node-deployment", "--extra-create-metadata"}, c.Args)
			require.Len(t, c.Env, 1)
			assert.Equal(t, "spec.nodeName", c.Env[0].ValueFrom.FieldRef.FieldPath)
			assert.Equal(t, container(t, o.Spec.Template.Spec, "provisioner").VolumeMounts, c.VolumeMounts, "the socket of the driver")
		case *appsv1.Deployment:
			c := container(t, o.Spec.Template.Spec, "snapshotter")
			assert.Equal(t, container(t, o.Spec.Template.Spec, "provisioner").Args, c.Args)
			assert.Equal(t, container(t, o.Spec.Template.Spec, "provisioner").VolumeMounts, c.VolumeMounts, "the socket of the driver")
		}
	}
}

// sidecars are the flags, used in the manifests, that each sidecar has at its tag. They were read in its sources. With
// --node-deployment a sidecar ends unless NODE_NAME is set.
var sidecars = map[string][]string{
	"csi-node-driver-registrar:v2.17.0": {"--csi-address", "--kubelet-registration-path"},
	"csi-provisioner:v6.3.0": {
		"--csi-address", "--node-deployment", "--strict-topology", "--immediate-topology", "--extra-create-metadata",
	},
	"csi-snapshotter:v8.6.0": {"--csi-address", "--node-deployment", "--extra-create-metadata"},
	"csi-attacher:v4.12.0":   {"--csi-address"},
	"csi-resizer:v2.2.1":     {"--csi-address"},
}

// Each sidecar has the flags that it gets, and each of one kind has the same version in all manifests.
func TestSidecarsHaveTheirFlags(t *testing.T) {
	used := map[string]bool{}
	for _, object := range manifests(t) {
		_, pod := podOf(object)
		for _, c := range pod.Containers {
			name, ok := strings.CutPrefix(c.Image, "registry.k8s.io/sig-storage/")
			if !ok {
				continue // the driver
			}
			used[name] = true
			for _, arg := range c.Args {
				flag, _, _ := strings.Cut(arg, "=")
				assert.Contains(t, sidecars[name], flag, name)
			}
			if slices.Contains(c.Args, "--node-deployment") {
				assert.True(t, slices.ContainsFunc(c.Env, func(e v1.EnvVar) bool { return e.Name == "NODE_NAME" }), name)
			}
		}
	}
	assert.Len(t, used, len(sidecars))
}

// The account of each pod may do what its sidecars need, and nothing else.
func TestTheSidecarsHaveTheirPermissions(t *testing.T) {
	needs := permissions(t)
	objects := manifests(t)
	roles := map[string]*rbacv1.ClusterRole{}
	for _, object := range objects {
		if role, ok := object.(*rbacv1.ClusterRole); ok {
			roles[role.Name] = role
		}
	}
	accounts := 0
	for _, object := range objects {
		binding, ok := object.(*rbacv1.ClusterRoleBinding)
		if !ok {
			continue
		}
		require.Len(t, binding.Subjects, 1)
		account := binding.Subjects[0]
		needed := map[string]bool{}
		for _, sidecar := range sidecarsOf(objects, account.Namespace, account.Name) {
			require.Contains(t, needs, sidecar)
			maps.Copy(needed, granted(needs[sidecar]))
		}
		require.NotNil(t, roles[binding.RoleRef.Name], binding.RoleRef.Name)
		assert.Equal(t, slices.Sorted(maps.Keys(needed)), slices.Sorted(maps.Keys(granted(roles[binding.RoleRef.Name].Rules))), account.Name)
		accounts++
	}
	assert.Equal(t, 2, accounts)
}

// permissions returns the rules that each sidecar needs.
func permissions(t *testing.T) map[string][]rbacv1.PolicyRule {
	t.Helper()
	content, err := os.ReadFile("testdata/permissions.yaml")
	require.NoError(t, err)
	var needs map[string][]rbacv1.PolicyRule
	require.NoError(t, utilyaml.Unmarshal(content, &needs))
	return needs
}

// sidecarsOf returns the names of the sidecars in the pods of a service account.
func sidecarsOf(objects []runtime.Object, namespace, account string) (names []string) {
	for _, object := range objects {
		at, pod := podOf(object)
		if at != namespace || pod.ServiceAccountName != account {
			continue
		}
		for _, c := range pod.Containers {
			if image, ok := strings.CutPrefix(c.Image, "registry.k8s.io/sig-storage/"); ok {
				name, _, _ := strings.Cut(image, ":")
				names = append(names, name)
			}
		}
	}
	return names
}

// podOf returns the namespace and the pods of a DaemonSet or a Deployment. Another object has none.
func podOf(object runtime.Object) (namespace string, pod v1.PodSpec) {
	switch o := object.(type) {
	case *appsv1.DaemonSet:
		return o.Namespace, o.Spec.Template.Spec
	case *appsv1.Deployment:
		return o.Namespace, o.Spec.Template.Spec
	}
	return "", v1.PodSpec{}
}

// granted returns what the rules allow, each verb of each resource in a line.
func granted(rules []rbacv1.PolicyRule) map[string]bool {
	lines := map[string]bool{}
	for _, rule := range rules {
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					lines[group+"/"+resource+" "+verb] = true
				}
			}
		}
	}
	return lines
}

func container(t *testing.T, pod v1.PodSpec, name string) v1.Container {
	t.Helper()
	i := slices.IndexFunc(pod.Containers, func(c v1.Container) bool { return c.Name == name })
	require.GreaterOrEqual(t, i, 0, "no container %s", name)
	return pod.Containers[i]
}

// volumeSnapshotClass has all fields of a VolumeSnapshotClass. Its own package would be a new dependency of the module.
type volumeSnapshotClass struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Driver         string            `json:"driver"`
	Parameters     map[string]string `json:"parameters"`
	DeletionPolicy string            `json:"deletionPolicy"`
}

// DeepCopyObject implements runtime.Object. The test changes no object.
func (c *volumeSnapshotClass) DeepCopyObject() runtime.Object { copied := *c; return &copied }

// manifests returns the objects of all manifests. A field that Kubernetes does not know fails the test.
func manifests(t *testing.T) []runtime.Object {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{v1.AddToScheme, appsv1.AddToScheme, storagev1.AddToScheme, rbacv1.AddToScheme} {
		require.NoError(t, add(scheme))
	}
	scheme.AddKnownTypeWithName(schema.GroupVersionKind{Group: "snapshot.storage.k8s.io", Version: "v1", Kind: "VolumeSnapshotClass"}, &volumeSnapshotClass{})
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
	files, err := filepath.Glob("manifests/*.yaml")
	require.NoError(t, err)
	var objects []runtime.Object
	for _, file := range files {
		content, err := os.ReadFile(file)
		require.NoError(t, err)
		documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(content)))
		for {
			document, err := documents.Read()
			if errors.Is(err, io.EOF) {
				break
			}
			require.NoError(t, err)
			object, _, err := decoder.Decode(document, nil, nil)
			require.NoError(t, err, file)
			objects = append(objects, object)
		}
	}
	return objects
}
