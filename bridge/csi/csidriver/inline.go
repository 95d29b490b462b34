package csidriver

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/volume"
)

// isInline reports whether a spec is an inline volume of a pod. The driver creates it in NodePublishVolume and deletes
// it in NodeUnpublishVolume.
func (p *Plugin) isInline(spec *volume.Spec) bool {
	return spec != nil && spec.PersistentVolume == nil && spec.Volume != nil && spec.Volume.CSI != nil &&
		spec.Volume.CSI.Driver == p.options.Driver
}

// inlineOf returns the source of an inline volume. The author of the pod chooses its attributes, so the CSIDriver must
// allow inline volumes.
func (p *Plugin) inlineOf(spec *volume.Spec, pod *v1.Pod) (source, error) {
	if err := p.client.checkMode(storagev1.VolumeLifecycleEphemeral); err != nil {
		return source{}, fmt.Errorf("volume %q: %w", spec.Name(), err)
	}
	inline := spec.Volume.CSI
	converted := &v1.CSIPersistentVolumeSource{
		Driver: inline.Driver, VolumeHandle: inlineHandle(pod, spec.Name()), ReadOnly: inline.ReadOnly != nil && *inline.ReadOnly,
		VolumeAttributes: inline.VolumeAttributes,
	}
	if inline.FSType != nil {
		converted.FSType = *inline.FSType
	}
	if inline.NodePublishSecretRef != nil { // An inline volume may name only a secret in the pod's namespace.
		converted.NodePublishSecretRef = &v1.SecretReference{Name: inline.NodePublishSecretRef.Name, Namespace: pod.Namespace}
	}
	pv := &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: spec.Name()},
		Spec:       v1.PersistentVolumeSpec{AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}},
	}
	pv.Spec.CSI = converted
	return source{pv: pv, csi: converted, readOnly: spec.ReadOnly || converted.ReadOnly, inline: true}, nil
}

// inlineHandle returns the id of an inline volume: the same for each set-up, and unique to the pod and the volume.
func inlineHandle(pod *v1.Pod, name string) string {
	sum := sha256.Sum256([]byte(string(pod.UID) + "/" + name)) // A UID has no slash: it is checked as an element of a path.
	return "csi-" + hex.EncodeToString(sum[:])
}
