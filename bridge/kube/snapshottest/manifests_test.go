//go:build kubeapiserver

package snapshottest

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"

	"github.com/volumekit/volumekit/bridge/kube/internal/servertest"
)

// example is the driver whose manifests docs/csi.md gives to operators.
const example = "../../../examples/csidriver"

// TestAPIServerManifests applies the manifests of the example of a driver to a real kube-apiserver, in the order of docs/csi.md. The server
// must know every field, keep it, admit the pods, and allow each service account what the sidecars of its pods need and no more.
func TestAPIServerManifests(t *testing.T) {
	server := servertest.Start(t)
	installCRDs(t, server.Config("admin"))
	c := newManifestClient(t, server.Config("admin"))
	var pods []pod
	for _, name := range []string{"csidriver.yaml", "rbac.yaml", "daemonset.yaml", "deployment.yaml", "snapshots.yaml"} {
		for _, document := range documents(t, filepath.Join(example, "manifests", name)) {
			kept := c.apply(t, document)
			requireKept(t, document.object.Object, kept.Object, name)
			if p, ok := podOf(t, kept); ok {
				pods = append(pods, p)
			}
		}
	}
	files, err := filepath.Glob(filepath.Join(example, "manifests", "*.yaml"))
	require.NoError(t, err)
	require.Len(t, files, 5, "a manifest is not applied by this test")

	require.Len(t, pods, 2)
	needs := permissions(t)
	for _, p := range pods {
		t.Run("PodsOf"+p.account, func(t *testing.T) {
			require.NotEmpty(t, p.sidecars)
			c.create(t, p.object)
			for _, sidecar := range p.sidecars {
				require.Contains(t, needs, sidecar)
				for _, request := range requests(needs[sidecar]) {
					assert.True(t, c.isAllowed(t, p, request), "%s in the pods of %s may not %s", sidecar, p.account, describe(request))
				}
			}
			for _, request := range forbidden {
				assert.False(t, c.isAllowed(t, p, request), "the pods of %s may %s", p.account, describe(request))
			}
		})
	}
	t.Run("AFieldThatTheServerDoesNotKnow", func(t *testing.T) {
		for _, name := range []string{"csidriver.yaml", "snapshots.yaml"} {
			document := documents(t, filepath.Join(example, "manifests", name))[0]
			document.content = append(document.content, "unheard: of\n"...)
			require.ErrorContains(t, c.send(t, document), "unheard", "the server is not strict")
		}
	})
}

// forbidden is what no sidecar of the manifests needs, and what would give its node to a stolen token.
var forbidden = []authorizationv1.ResourceAttributes{
	{Verb: "get", Resource: "secrets", Namespace: "default"},
	{Verb: "list", Resource: "secrets"},
	{Verb: "get", Resource: "configmaps", Namespace: "kube-system"},
	{Verb: "create", Resource: "pods", Namespace: "default"},
	{Verb: "create", Resource: "pods", Subresource: "exec", Namespace: "default"},
	{Verb: "create", Resource: "serviceaccounts", Subresource: "token", Namespace: "kube-system"},
	{Verb: "delete", Resource: "nodes"},
	{Verb: "patch", Resource: "nodes"},
	{Verb: "delete", Resource: "persistentvolumeclaims", Namespace: "default"},
	{Verb: "delete", Group: "storage.k8s.io", Resource: "csidrivers"},
	{Verb: "delete", Group: "storage.k8s.io", Resource: "volumeattachments"},
	{Verb: "create", Group: "snapshot.storage.k8s.io", Resource: "volumesnapshotcontents"},
	{Verb: "delete", Group: "snapshot.storage.k8s.io", Resource: "volumesnapshotcontents"},
	{Verb: "delete", Group: "snapshot.storage.k8s.io", Resource: "volumesnapshots", Namespace: "default"},
	{Verb: "escalate", Group: "rbac.authorization.k8s.io", Resource: "clusterroles"},
	{Verb: "create", Group: "rbac.authorization.k8s.io", Resource: "clusterrolebindings"},
	{Verb: "impersonate", Resource: "users"},
}

// pod is a pod of a DaemonSet or of a Deployment.
type pod struct {
	object             *unstructured.Unstructured
	namespace, account string
	sidecars           []string
}

// podOf returns the pod of an object that makes pods, and false for any other.
func podOf(t *testing.T, owner *unstructured.Unstructured) (p pod, ok bool) {
	t.Helper()
	spec, ok, err := unstructured.NestedMap(owner.Object, "spec", "template", "spec")
	require.NoError(t, err)
	if !ok {
		return pod{}, false
	}
	p = pod{namespace: owner.GetNamespace(), object: &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Pod", "spec": spec,
		"metadata": map[string]any{"name": owner.GetName(), "namespace": owner.GetNamespace()},
	}}}
	p.account, _, err = unstructured.NestedString(spec, "serviceAccountName")
	require.NoError(t, err)
	containers, _, err := unstructured.NestedSlice(spec, "containers")
	require.NoError(t, err)
	for _, c := range containers {
		if image, ok := strings.CutPrefix(c.(map[string]any)["image"].(string), "registry.k8s.io/sig-storage/"); ok {
			name, _, _ := strings.Cut(image, ":")
			p.sidecars = append(p.sidecars, name)
		}
	}
	return p, true
}

// permissions returns the rules that each sidecar needs.
func permissions(t *testing.T) map[string][]rbacv1.PolicyRule {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(example, "testdata", "permissions.yaml"))
	require.NoError(t, err)
	var needs map[string][]rbacv1.PolicyRule
	require.NoError(t, utilyaml.Unmarshal(content, &needs))
	return needs
}

// requests returns a request for each verb of each resource in the rules, in all namespaces.
func requests(rules []rbacv1.PolicyRule) (all []authorizationv1.ResourceAttributes) {
	for _, rule := range rules {
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				resource, subresource, _ := strings.Cut(resource, "/")
				for _, verb := range rule.Verbs {
					all = append(all, authorizationv1.ResourceAttributes{Verb: verb, Group: group, Resource: resource, Subresource: subresource})
				}
			}
		}
	}
	return all
}

func describe(r authorizationv1.ResourceAttributes) string {
	return strings.TrimSuffix(fmt.Sprintf("%s %s/%s/%s", r.Verb, r.Group, r.Resource, r.Subresource), "/")
}

// document is one object of a manifest, and its YAML.
type document struct {
	object  *unstructured.Unstructured
	content []byte
}

// documents returns the documents of a manifest.
func documents(t *testing.T, file string) (all []document) {
	t.Helper()
	content, err := os.ReadFile(file)
	require.NoError(t, err)
	reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(content)))
	for {
		one, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return all
		}
		require.NoError(t, err, file)
		object := map[string]any{}
		require.NoError(t, utilyaml.Unmarshal(one, &object), file)
		all = append(all, document{&unstructured.Unstructured{Object: object}, one})
	}
}

// requireKept fails the test unless the server has each value of a manifest.
func requireKept(t *testing.T, want, got any, path string) {
	t.Helper()
	switch want := want.(type) {
	case map[string]any:
		got, ok := got.(map[string]any)
		require.True(t, ok, "%s: the server has %v", path, got)
		for key := range want {
			requireKept(t, want[key], got[key], path+"."+key)
		}
	case []any:
		got, ok := got.([]any)
		require.True(t, ok, "%s: the server has %v", path, got)
		require.Len(t, got, len(want), path)
		for i := range want {
			requireKept(t, want[i], got[i], fmt.Sprintf("%s[%d]", path, i))
		}
	default:
		require.EqualValues(t, want, got, path)
	}
}

// manifestClient applies objects of any kind.
type manifestClient struct {
	clients *kubernetes.Clientset
	objects dynamic.Interface
	mapper  meta.RESTMapper
}

func newManifestClient(t *testing.T, config *rest.Config) manifestClient {
	t.Helper()
	config.ContentType = "application/json"
	clients, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	objects, err := dynamic.NewForConfig(config)
	require.NoError(t, err)
	groups, err := restmapper.GetAPIGroupResources(clients.Discovery())
	require.NoError(t, err)
	return manifestClient{clients: clients, objects: objects, mapper: restmapper.NewDiscoveryRESTMapper(groups)}
}

// apply applies a document and returns what the server then has.
func (c manifestClient) apply(t *testing.T, d document) *unstructured.Unstructured {
	t.Helper()
	require.NoError(t, c.send(t, d))
	kept, err := c.resource(t, d.object).Get(t.Context(), d.object.GetName(), metav1.GetOptions{})
	require.NoError(t, err)
	return kept
}

// send applies a document with the strict validation of fields.
func (c manifestClient) send(t *testing.T, d document) error {
	t.Helper()
	_, err := c.resource(t, d.object).Patch(t.Context(), d.object.GetName(), types.ApplyYAMLPatchType, d.content,
		metav1.PatchOptions{FieldManager: "test", FieldValidation: metav1.FieldValidationStrict})
	return err
}

// create checks that the server would create an object.
func (c manifestClient) create(t *testing.T, object *unstructured.Unstructured) {
	t.Helper()
	_, err := c.resource(t, object).Create(t.Context(), object,
		metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}, FieldValidation: metav1.FieldValidationStrict})
	require.NoError(t, err)
}

func (c manifestClient) resource(t *testing.T, object *unstructured.Unstructured) dynamic.ResourceInterface {
	t.Helper()
	kind := object.GroupVersionKind()
	mapping, err := c.mapper.RESTMapping(kind.GroupKind(), kind.Version)
	require.NoError(t, err)
	resource := c.objects.Resource(mapping.Resource)
	if object.GetNamespace() == "" {
		return resource
	}
	return resource.Namespace(object.GetNamespace())
}

// isAllowed reports whether the server lets the pods' service account do it.
func (c manifestClient) isAllowed(t *testing.T, p pod, request authorizationv1.ResourceAttributes) bool {
	t.Helper()
	review, err := c.clients.AuthorizationV1().SubjectAccessReviews().Create(t.Context(), &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{
			User:               "system:serviceaccount:" + p.namespace + ":" + p.account,
			Groups:             []string{"system:serviceaccounts", "system:serviceaccounts:" + p.namespace, "system:authenticated"},
			ResourceAttributes: &request,
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	require.Empty(t, review.Status.EvaluationError)
	return review.Status.Allowed
}
