package csidriver

import (
	"context"
	"fmt"
	"os"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/volume"
)

// The annotations in which external-provisioner stores the reference to the secret for the deletion of a volume.
const (
	annDeletionSecretName      = "volume.kubernetes.io/provisioner-deletion-secret-name"
	annDeletionSecretNamespace = "volume.kubernetes.io/provisioner-deletion-secret-namespace"
)

// secret returns the content of a secret; nil if ref is nil. It reads the secret at each call and keeps nothing. An
// error has no content of the secret, and is transient.
func (o Options) secret(ctx context.Context, ref *v1.SecretReference) (map[string]string, error) {
	if ref == nil || ref.Name == "" {
		return nil, nil
	}
	if o.Secrets == nil {
		return nil, fmt.Errorf("driver %q: the plugin was given nothing to get secret %q of namespace %q from: set Options.Secrets: %w",
			o.Driver, ref.Name, ref.Namespace, volume.ErrUnsupported)
	}
	secret, err := o.Secrets.Secret(ctx, ref.Namespace, ref.Name)
	if err == nil && secret == nil {
		err = volume.ErrInvalid
	}
	if err != nil {
		return nil, volume.Transient(fmt.Errorf("driver %q: secret %q of namespace %q: %w", o.Driver, ref.Name, ref.Namespace, err))
	}
	values := make(map[string]string, len(secret.Data))
	for key, value := range secret.Data {
		values[key] = string(value)
	}
	return values, nil
}

// The prefix of Kubernetes' own class parameters, and their names.
const (
	parameterPrefix         = "csi.storage.k8s.io/"
	parameterFSType         = parameterPrefix + "fstype"
	secretNameEnd           = "-secret-name"
	secretSpaceEnd          = "-secret-namespace"
	provisionerSecret       = "provisioner"
	controllerPublishSecret = "controller-publish"
	nodeStageSecret         = "node-stage"
	nodePublishSecret       = "node-publish"
	controllerExpandSecret  = "controller-expand"
	nodeExpandSecret        = "node-expand"
	controllerModifySecret  = "controller-modify"
)

// classSecrets are a class's references to secrets, by purpose.
type classSecrets map[string]*v1.SecretReference

// splitParameters splits the parameters of a class into the driver's own, the filesystem and the references to secrets.
func splitParameters(options volume.VolumeOptions) (own map[string]string, fsType string, refs classSecrets, err error) {
	own, refs = map[string]string{}, classSecrets{}
	for key, value := range options.Parameters {
		name, isKubernetes := strings.CutPrefix(key, parameterPrefix)
		switch {
		case key == parameterFSType || key == volume.VolumeParameterFSType:
			if fsType != "" && fsType != value {
				return nil, "", nil, fmt.Errorf("class parameters %s and %s differ: set one: %w", parameterFSType, volume.VolumeParameterFSType, volume.ErrInvalid)
			}
			fsType = value
		case !isKubernetes:
			own[key] = value
		default:
			if err := refs.set(name, value, options); err != nil {
				return nil, "", nil, fmt.Errorf("class parameter %q: %w", key, err)
			}
		}
	}
	if err := refs.checkWhole(); err != nil {
		return nil, "", nil, err
	}
	return own, fsType, refs, nil
}

// checkWhole refuses a secret without a name or a namespace.
func (c classSecrets) checkWhole() error {
	for purpose, ref := range c {
		if ref.Name == "" || ref.Namespace == "" {
			return fmt.Errorf("class parameters: %s needs %s and %s together: %w",
				purpose, parameterPrefix+purpose+secretNameEnd, parameterPrefix+purpose+secretSpaceEnd, volume.ErrInvalid)
		}
	}
	return nil
}

// set reads one parameter, without the prefix.
func (c classSecrets) set(name, value string, options volume.VolumeOptions) error {
	purpose, isName := strings.CutSuffix(name, secretNameEnd)
	if !isName {
		var isSpace bool
		if purpose, isSpace = strings.CutSuffix(name, secretSpaceEnd); !isSpace {
			return fmt.Errorf("it is not known: %w", volume.ErrInvalid)
		}
	}
	switch purpose {
	case provisionerSecret, controllerPublishSecret, nodeStageSecret, nodePublishSecret, controllerExpandSecret, nodeExpandSecret, controllerModifySecret:
	default:
		return fmt.Errorf("it is not known: %w", volume.ErrInvalid)
	}
	filled, err := fill(value, isName, options)
	if err != nil {
		return err
	}
	c.put(purpose, filled, isName)
	return nil
}

// put sets the name or the namespace of a reference.
func (c classSecrets) put(purpose, value string, isName bool) { //nolint:revive // It says the meaning of the value.
	if c[purpose] == nil {
		c[purpose] = &v1.SecretReference{}
	}
	if isName {
		c[purpose].Name = value
	} else {
		c[purpose].Namespace = value
	}
}

// fill expands a template with the names of the claim and the volume. Only a secret's name may contain the claim's name
// and annotations: the author of a claim must not choose the namespace.
func fill(template string, isName bool, options volume.VolumeOptions) (string, error) { //nolint:revive // It says what the template is for.
	var unknown string
	filled := os.Expand(template, func(key string) string {
		switch {
		case key == "pv.name":
			return options.PVName
		case key == "pvc.namespace" && options.PVC != nil:
			return options.PVC.Namespace
		case key == "pvc.name" && isName && options.PVC != nil:
			return options.PVC.Name
		}
		if annotation, ok := annotationKey(key); ok && isName && options.PVC != nil {
			if value, ok := options.PVC.Annotations[annotation]; ok {
				return value
			}
		}
		unknown = key
		return ""
	})
	if unknown != "" {
		return "", fmt.Errorf("nothing is known for ${%s}: %w", unknown, volume.ErrInvalid)
	}
	if filled == "" {
		return "", fmt.Errorf("it is empty: %w", volume.ErrInvalid)
	}
	return filled, nil
}

// annotationKey returns the key of pvc.annotations['key'].
func annotationKey(key string) (string, bool) {
	rest, ok := strings.CutPrefix(key, "pvc.annotations['")
	if !ok {
		return "", false
	}
	return strings.CutSuffix(rest, "']")
}
