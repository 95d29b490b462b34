package snapshot

import (
	"context"
	"fmt"
	"os"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// The parameters of a class that name the secret of its snapshots.
const (
	paramSecretName       = "csi.storage.k8s.io/snapshotter-secret-name"
	paramSecretSpace      = "csi.storage.k8s.io/snapshotter-secret-namespace"
	paramGroupSecretName  = "csi.storage.k8s.io/group-snapshotter-secret-name"
	paramGroupSecretSpace = "csi.storage.k8s.io/group-snapshotter-secret-namespace"
)

// DeletionSecret returns the secret with which a plugin deletes the snapshot of handle: the one that annotations of its
// VolumeSnapshotContent name ([AnnDeletionSecretName]). nil and no error say that there is none. A CSI plugin asks by its
// SnapshotSecrets option. It reads s, which must keep [Kinds].
func DeletionSecret(ctx context.Context, s store.Store, pluginName, handle string) (*v1.SecretReference, error) {
	all, _, err := store.ListOf[*snapshotv1.VolumeSnapshotContent](ctx, s, "")
	for _, content := range all {
		ref := secretIn(content.Annotations, AnnDeletionSecretName, AnnDeletionSecretNamespace)
		if ref != nil && handleOf(content) == handle && volume.IsDriverOfPlugin(content.Spec.Driver, pluginName) {
			return ref, nil
		}
	}
	return nil, err
}

// GroupDeletionSecret is DeletionSecret for the group of handle, whose VolumeGroupSnapshotContent names the secret
// ([AnnGroupDeletionSecretName]).
func GroupDeletionSecret(ctx context.Context, s store.Store, pluginName, handle string) (*v1.SecretReference, error) {
	all, _, err := store.ListOf[*groupv1.VolumeGroupSnapshotContent](ctx, s, "")
	for _, content := range all {
		ref := secretIn(content.Annotations, AnnGroupDeletionSecretName, AnnGroupDeletionSecretNamespace)
		if ref != nil && groupHandleOf(content) == handle && volume.IsDriverOfPlugin(content.Spec.Driver, pluginName) {
			return ref, nil
		}
	}
	return nil, err
}

func secretIn(annotations map[string]string, name, namespace string) *v1.SecretReference {
	if annotations[name] == "" || annotations[namespace] == "" {
		return nil
	}
	return &v1.SecretReference{Name: annotations[name], Namespace: annotations[namespace]}
}

// keepSecret writes into the annotations of a content which secret the parameters of its class name. Later the class may be gone, and
// the snapshot can be deleted all the same.
func keepSecret(content, snap store.Object, parameters map[string]string) error {
	return keepSecretOf(content, snap, parameters, secretKeys{
		paramSecretName, paramSecretSpace, AnnDeletionSecretName, AnnDeletionSecretNamespace, "volumesnapshot",
	})
}

func keepGroupSecret(content, group store.Object, parameters map[string]string) error {
	return keepSecretOf(content, group, parameters, secretKeys{
		paramGroupSecretName, paramGroupSecretSpace, AnnGroupDeletionSecretName, AnnGroupDeletionSecretNamespace, "volumegroupsnapshot",
	})
}

// secretKeys are the keys of a secret in the parameters of a class and in the annotations of a content, and the name of the object in
// templates.
type secretKeys struct{ paramName, paramSpace, annName, annSpace, object string }

func keepSecretOf(content, of store.Object, parameters map[string]string, keys secretKeys) error {
	name, space := parameters[keys.paramName], parameters[keys.paramSpace]
	if name == "" && space == "" {
		return nil
	}
	if name == "" || space == "" {
		return fmt.Errorf("the class has one of the parameters %q and %q: give both, or neither: %w", keys.paramName, keys.paramSpace, volume.ErrInvalid)
	}
	known := map[string]string{keys.object + ".namespace": of.GetNamespace(), keys.object + "content.name": content.GetName()}
	space, err := expand(space, known)
	if err == nil { // Who writes a snapshot must not choose the namespace of a secret by its name.
		known[keys.object+".name"] = of.GetName()
		name, err = expand(name, known)
	}
	if err != nil {
		return err
	}
	annotations := content.GetAnnotations()
	annotations[keys.annName], annotations[keys.annSpace] = name, space
	return nil
}

// expand puts what is known into a template, where it stands as ${object.name}.
func expand(template string, known map[string]string) (string, error) {
	var unknown string
	filled := os.Expand(template, func(key string) string {
		value, ok := known[key]
		if !ok {
			unknown = key
		}
		return value
	})
	if unknown != "" {
		return "", fmt.Errorf("the class names its secret by ${%s}, which is not known: name it otherwise: %w", unknown, volume.ErrInvalid)
	}
	return filled, nil
}
