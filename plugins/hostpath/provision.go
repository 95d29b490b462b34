package hostpath

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/volume"
)

// provisioner makes the directory of one volume.
type provisioner struct {
	plugin  *Plugin
	options volume.VolumeOptions
	size    int64
}

// NewProvisioner implements [volume.ProvisionableVolumePlugin]. It checks options and does no I/O. The plugin has no class parameters
// and no mount options: for any of them the error matches volume.ErrInvalid. For a claim of a block device or of a copy, or with an
// access mode that the plugin lacks, the error matches volume.ErrInfeasible.
func (p *Plugin) NewProvisioner(options volume.VolumeOptions) (volume.Provisioner, error) {
	size, err := volume.RequestedBytes(options.PVC)
	if err == nil {
		err = p.checkOptions(options)
	}
	if err != nil {
		return nil, fmt.Errorf("host path volume %q: %w", options.PVName, err)
	}
	return &provisioner{plugin: p, options: options, size: size}, nil
}

func (p *Plugin) checkOptions(options volume.VolumeOptions) error {
	claim := options.PVC.Spec
	switch {
	case p.baseDir == "":
		return fmt.Errorf("nothing is provisioned without a base directory: set Options.BaseDir: %w", volume.ErrUnsupported)
	case len(options.Parameters) > 0:
		return fmt.Errorf("the class has parameters, and this plugin knows none: remove them: %w", volume.ErrInvalid)
	case len(options.MountOptions) > 0:
		return fmt.Errorf("the class has mount options, and nothing is mounted: remove them: %w", volume.ErrInvalid)
	case volume.CheckPersistentVolumeClaimModeBlock(options.PVC):
		return fmt.Errorf("the claim asks for a block device, and this plugin makes directories: %w", volume.ErrInfeasible)
	case claim.DataSource != nil || claim.DataSourceRef != nil:
		return fmt.Errorf("this plugin makes no copies of other volumes: %w", volume.ErrInfeasible)
	case !volume.ContainsAllAccessModes(p.GetAccessModes(), claim.AccessModes):
		return fmt.Errorf("access modes %v: use those of %v: %w", claim.AccessModes, p.GetAccessModes(), volume.ErrInfeasible)
	}
	return volume.CheckPathElement(options.PVName)
}

// Provision implements [volume.Provisioner]. It makes the directory on this node, and the volume's node affinity names the node. For
// another selected node, and for allowed topologies, the error matches volume.ErrInfeasible. The size is not enforced.
func (r *provisioner) Provision(
	ctx context.Context, selectedNode *v1.Node, allowedTopologies []v1.TopologySelectorTerm,
) (*v1.PersistentVolume, error) {
	here := string(r.plugin.host.GetNodeName())
	switch {
	case selectedNode != nil && selectedNode.Name != here:
		return nil, fmt.Errorf("a directory of node %q is of no use to node %q: %w", here, selectedNode.Name, volume.ErrInfeasible)
	case len(allowedTopologies) > 0:
		return nil, fmt.Errorf("this plugin knows no topologies: remove allowedTopologies from the class: %w", volume.ErrInfeasible)
	}
	if err := r.plugin.makeVolume(ctx, r.options.PVName); err != nil {
		return nil, fmt.Errorf("making the directory of host path volume %q: %w", r.options.PVName, err)
	}
	return r.persistentVolume(here), nil
}

func (r *provisioner) persistentVolume(node string) *v1.PersistentVolume {
	modes := slices.Clone(r.options.PVC.Spec.AccessModes)
	if len(modes) == 0 {
		modes = r.plugin.GetAccessModes()
	}
	want, mode := v1.HostPathDirectory, v1.PersistentVolumeFilesystem
	return &v1.PersistentVolume{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "PersistentVolume"},
		ObjectMeta: metav1.ObjectMeta{Name: r.options.PVName},
		Spec: v1.PersistentVolumeSpec{
			Capacity:                      v1.ResourceList{v1.ResourceStorage: *resource.NewQuantity(r.size, resource.BinarySI)},
			AccessModes:                   modes,
			PersistentVolumeReclaimPolicy: r.options.PersistentVolumeReclaimPolicy,
			VolumeMode:                    &mode,
			NodeAffinity:                  onNode(node),
			PersistentVolumeSource: v1.PersistentVolumeSource{HostPath: &v1.HostPathVolumeSource{
				Path: filepath.Join(r.plugin.baseDir, r.options.PVName), Type: &want,
			}},
		},
	}
}

// onNode returns the node affinity to one node.
func onNode(name string) *v1.VolumeNodeAffinity {
	return &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
		MatchFields: []v1.NodeSelectorRequirement{{
			Key: metav1.ObjectNameField, Operator: v1.NodeSelectorOpIn, Values: []string{name},
		}},
	}}}}
}
