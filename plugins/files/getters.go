package files

import (
	"context"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/volume"
)

// ErrNotFound says that an object does not exist. An error of a getter matches it; a source that is optional then gives
// nothing. Any other error fails the set-up, since what could not be read is not known to be absent. It is [volume.ErrNotFound]
// and store.ErrNotFound, too: store.Getter gets config maps and secrets from a store.
var ErrNotFound = volume.ErrNotFound

// ConfigMaps gets config maps. A store.Getter is one.
type ConfigMaps interface {
	// ConfigMap returns the config map of a namespace by its name. It is not changed.
	ConfigMap(ctx context.Context, namespace, name string) (*v1.ConfigMap, error)
}

// Secrets gets secrets. A store.Getter is one.
type Secrets interface {
	// Secret returns the secret of a namespace by its name. It is not changed. The error must hold nothing of the content.
	Secret(ctx context.Context, namespace, name string) (*v1.Secret, error)
}

// Tokens gets tokens of service accounts.
type Tokens interface {
	// ServiceAccountToken returns a token of the pod's service account, bound to the pod, for the audience and the time that
	// source asks for. It is called at each set-up: the getter keeps a token for as long as it is good, and returns another
	// one some time before it is not.
	ServiceAccountToken(ctx context.Context, pod *v1.Pod, source v1.ServiceAccountTokenProjection) (string, error)
}

// TrustBundles gets trust anchors.
type TrustBundles interface {
	// TrustBundle returns the certificates, in PEM, of the cluster trust bundles that source selects.
	TrustBundle(ctx context.Context, source v1.ClusterTrustBundleProjection) ([]byte, error)
}

// Node knows what the node has.
type Node interface {
	// Allocatable returns what pods of the node may use together.
	Allocatable(ctx context.Context) (v1.ResourceList, error)
}

// Getters are where the content of projected volumes comes from. A source whose getter is nil is refused.
type Getters struct {
	// ConfigMaps is for the source configMap.
	ConfigMaps ConfigMaps
	// Secrets is for the source secret.
	Secrets Secrets
	// Tokens is for the source serviceAccountToken.
	Tokens Tokens
	// TrustBundles is for the source clusterTrustBundle.
	TrustBundles TrustBundles
	// Node is for the source downwardAPI, where a container has no limit of its own.
	Node Node
}
