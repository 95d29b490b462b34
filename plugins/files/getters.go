package files

import (
	"context"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/volume"
)

// ErrNotFound says that an object does not exist. If a getter's error matches it, an optional source has no files. Any other error
// fails the set-up, because an object that could not be read may exist. It is the same error as [volume.ErrNotFound] and
// store.ErrNotFound: store.Getter gets config maps and secrets from a store.
var ErrNotFound = volume.ErrNotFound

// ConfigMaps gets config maps. A store.Getter is one.
type ConfigMaps interface {
	// ConfigMap returns the config map with that name. The plugin does not change it.
	ConfigMap(ctx context.Context, namespace, name string) (*v1.ConfigMap, error)
}

// Secrets gets secrets. A store.Getter is one.
type Secrets interface {
	// Secret returns the secret with that name. The plugin does not change it. The error must not contain any of its content.
	Secret(ctx context.Context, namespace, name string) (*v1.Secret, error)
}

// Tokens gets tokens of service accounts.
type Tokens interface {
	// ServiceAccountToken returns a token of the pod's service account, bound to the pod, with the audience and the lifetime of
	// source. The plugin calls it at each set-up. So the getter must cache a token, and replace it some time before it expires.
	ServiceAccountToken(ctx context.Context, pod *v1.Pod, source v1.ServiceAccountTokenProjection) (string, error)
}

// TrustBundles gets trust anchors.
type TrustBundles interface {
	// TrustBundle returns the certificates, in PEM, of the cluster trust bundles that source selects.
	TrustBundle(ctx context.Context, source v1.ClusterTrustBundleProjection) ([]byte, error)
}

// Node knows the resources of the node.
type Node interface {
	// Allocatable returns the resources that the pods of the node may use together.
	Allocatable(ctx context.Context) (v1.ResourceList, error)
}

// Getters read the content of projected volumes. The plugin refuses a source whose getter is nil.
type Getters struct {
	// ConfigMaps is for the source configMap.
	ConfigMaps ConfigMaps
	// Secrets is for the source secret.
	Secrets Secrets
	// Tokens is for the source serviceAccountToken.
	Tokens Tokens
	// TrustBundles is for the source clusterTrustBundle.
	TrustBundles TrustBundles
	// Node is for the source downwardAPI, if a container does not set the limit that it refers to.
	Node Node
}
