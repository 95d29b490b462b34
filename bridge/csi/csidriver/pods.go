package csidriver

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strconv"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/volumekit/volumekit/bridge/csi/internal/csispec"
	"github.com/volumekit/volumekit/volume"
)

// Tokens returns tokens of service accounts.
type Tokens interface {
	// PodToken returns a token of the pod's service account, and its expiry. The token is bound to the pod. It has the
	// audience and the duration of the request.
	PodToken(ctx context.Context, pod *v1.Pod, request storagev1.TokenRequest) (token string, expires time.Time, err error)
}

// The keys of the volume context with which Kubernetes describes the pod to a driver.
const (
	podNameKey      = parameterPrefix + "pod.name"
	podNamespaceKey = parameterPrefix + "pod.namespace"
	podUIDKey       = parameterPrefix + "pod.uid"
	podAccountKey   = parameterPrefix + "serviceAccount.name"
	ephemeralKey    = parameterPrefix + "ephemeral"
)

// addPod adds to the volume context what the CSIDriver requests: the pod's names, and tokens of its service account.
func (n *nodeService) addPod(ctx context.Context, pub publication, request *csi.NodePublishVolumeRequest) error {
	if pub.pod == nil {
		return nil
	}
	spec := n.client.spec()
	if isTrue(spec.PodInfoOnMount) {
		request.VolumeContext = withValues(request.GetVolumeContext(), map[string]string{
			podNameKey: pub.pod.Name, podNamespaceKey: pub.pod.Namespace, podUIDKey: string(pub.pod.UID),
			podAccountKey: pub.pod.Spec.ServiceAccountName, ephemeralKey: strconv.FormatBool(pub.src.inline),
		})
	}
	if len(spec.TokenRequests) == 0 {
		return nil
	}
	tokens, err := n.options.podTokens(ctx, pub.pod, spec.TokenRequests)
	if err != nil {
		return fmt.Errorf("driver %q: volume %q: %w", n.options.Driver, pub.src.pv.Name, err)
	}
	if isTrue(spec.ServiceAccountTokenInSecrets) {
		request.Secrets = withValues(request.GetSecrets(), map[string]string{csispec.TokensKey: tokens})
	} else {
		request.VolumeContext = withValues(request.GetVolumeContext(), map[string]string{csispec.TokensKey: tokens})
	}
	return nil
}

// withValues returns the values of both maps. A value of more overrides one of others.
func withValues(values, more map[string]string) map[string]string {
	all := make(map[string]string, len(values)+len(more))
	maps.Copy(all, values)
	maps.Copy(all, more)
	return all
}

// podToken is a token in Kubernetes' JSON format.
type podToken struct {
	Token   string    `json:"token"`
	Expires time.Time `json:"expirationTimestamp"`
}

// podTokens returns a token for each audience, in Kubernetes' JSON format. It requests new tokens at each call and keeps
// none.
func (o Options) podTokens(ctx context.Context, pod *v1.Pod, requests []storagev1.TokenRequest) (string, error) {
	if o.Tokens == nil {
		return "", fmt.Errorf("its CSIDriver requests tokens of service accounts: set Options.Tokens: %w", volume.ErrUnsupported)
	}
	byAudience := make(map[string]podToken, len(requests))
	for _, request := range requests {
		token, expires, err := o.Tokens.PodToken(ctx, pod, request)
		if err != nil {
			return "", volume.Transient(fmt.Errorf("token of service account %q for audience %q: %w", pod.Spec.ServiceAccountName, request.Audience, err))
		}
		byAudience[request.Audience] = podToken{Token: token, Expires: expires}
	}
	text, err := json.Marshal(byAudience)
	return string(text), err
}
