package csidriver

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/volume"
)

// The annotations of a PersistentVolume that name the secret for its modification, as Kubernetes' external-provisioner writes them.
const (
	annModifySecretName      = "volume.kubernetes.io/controller-modify-secret-name"
	annModifySecretNamespace = "volume.kubernetes.io/controller-modify-secret-namespace"
)

// ModifyVolume implements [volume.ModifiableVolumePlugin]. After INVALID_ARGUMENT a retry cannot succeed. For a class
// without parameters it does not call the driver.
func (p *Plugin) ModifyVolume(ctx context.Context, spec *volume.Spec, parameters map[string]string) error {
	src, err := p.sourceOf(spec)
	if err != nil || len(parameters) == 0 {
		return err
	}
	s, err := p.client.session(ctx)
	if err != nil {
		return err
	}
	secrets, err := p.options.secret(ctx, modifySecretOf(src.pv))
	if err != nil {
		return err
	}
	_, err = call(ctx, s, "ControllerModifyVolume", csi.NewControllerClient(s.conn).ControllerModifyVolume, &csi.ControllerModifyVolumeRequest{
		VolumeId: src.csi.VolumeHandle, Secrets: secrets, MutableParameters: parameters,
	})
	return err
}

// modifySecretOf returns the secret that the annotations name, otherwise that for expansions, as Kubernetes' resizer
// does.
func modifySecretOf(pv *v1.PersistentVolume) *v1.SecretReference {
	name, namespace := pv.Annotations[annModifySecretName], pv.Annotations[annModifySecretNamespace]
	if name == "" || namespace == "" {
		return pv.Spec.CSI.ControllerExpandSecretRef
	}
	return &v1.SecretReference{Name: name, Namespace: namespace}
}
