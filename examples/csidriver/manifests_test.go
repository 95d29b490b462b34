package main

import (
	"bufio"
	"bytes"
	"errors"
	"io"
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
	"k8s.io/apimachinery/pkg/runtime"
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
		}
	}
	assert.Equal(t, map[string]int{
		"CSIDriver": 1, "StorageClass": 1, "ServiceAccount": 1, "ClusterRole": 1, "ClusterRoleBinding": 1, "DaemonSet": 1, "Deployment": 1,
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

// What csi-snapshotter asks of an API server is granted to it.
func TestTheSnapshotterMayWhatItDoes(t *testing.T) {
	reads := []string{"get", "list", "watch"}
	needs := map[string][]string{"/events": {"create", "update", "patch"}}
	for group, kind := range map[string]string{"snapshot": "volumesnapshot", "groupsnapshot": "volumegroupsnapshot"} {
		group += ".storage.k8s.io/"
		needs[group+kind+"classes"] = reads
		needs[group+kind+"contents"] = append([]string{"update", "patch"}, reads...)
		needs[group+kind+"contents/status"] = []string{"update", "patch"}
	}
	needs["snapshot.storage.k8s.io/volumesnapshots"] = []string{"get"} // the provisioner, for a restored claim
	for _, object := range manifests(t) {
		role, ok := object.(*rbacv1.ClusterRole)
		if !ok {
			continue
		}
		for resource, verbs := range needs {
			assert.Subset(t, verbsOf(role, resource), verbs, resource)
		}
	}
}

// verbsOf returns what a role may do with group/resource.
func verbsOf(role *rbacv1.ClusterRole, resource string) []string {
	group, name, _ := strings.Cut(resource, "/")
	var verbs []string
	for _, rule := range role.Rules {
		if slices.Contains(rule.APIGroups, group) && slices.Contains(rule.Resources, name) {
			verbs = append(verbs, rule.Verbs...)
		}
	}
	return verbs
}

func container(t *testing.T, pod v1.PodSpec, name string) v1.Container {
	t.Helper()
	i := slices.IndexFunc(pod.Containers, func(c v1.Container) bool { return c.Name == name })
	require.GreaterOrEqual(t, i, 0, "no container %s", name)
	return pod.Containers[i]
}

// manifests returns the objects of all manifests. A field that Kubernetes does not know fails the test.
func manifests(t *testing.T) []runtime.Object {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{v1.AddToScheme, appsv1.AddToScheme, storagev1.AddToScheme, rbacv1.AddToScheme} {
		require.NoError(t, add(scheme))
	}
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
