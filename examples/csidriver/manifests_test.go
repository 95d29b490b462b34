package main

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
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
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{v1.AddToScheme, appsv1.AddToScheme, storagev1.AddToScheme, rbacv1.AddToScheme} {
		require.NoError(t, add(scheme))
	}
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
	kinds := map[string]int{}
	files, err := filepath.Glob("manifests/*.yaml")
	require.NoError(t, err)
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
			object, kind, err := decoder.Decode(document, nil, nil)
			require.NoError(t, err, file)
			kinds[kind.Kind]++
			if driver, ok := object.(*storagev1.CSIDriver); ok {
				assert.Equal(t, loopblock.Driver, driver.Name)
			}
			if class, ok := object.(*storagev1.StorageClass); ok {
				assert.Equal(t, loopblock.Driver, class.Provisioner)
			}
		}
	}
	assert.Equal(t, map[string]int{
		"CSIDriver": 1, "StorageClass": 1, "ServiceAccount": 1, "ClusterRole": 1, "ClusterRoleBinding": 1, "DaemonSet": 1, "Deployment": 1,
	}, kinds)
}
