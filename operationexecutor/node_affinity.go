package operationexecutor

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/volume"
)

// checkNodeAffinity refuses a PersistentVolume whose node affinity does not allow this node, before anything is done. The
// labels are asked for only when the volume has an affinity.
func (g *generator) checkNodeAffinity(ctx context.Context, x *execution, spec *volume.Spec) error {
	if g.nodeLabels == nil || !volume.HasNodeAffinity(spec.PersistentVolume) {
		return nil
	}
	return x.port(ctx, "NodeLabels", func(ctx context.Context) error {
		labels, err := g.nodeLabels.NodeLabels(ctx)
		if err != nil {
			return volume.Transient(fmt.Errorf("the labels of this node are not known: %w", err))
		}
		name := string(g.plugins.Host().GetNodeName())
		return volume.CheckNodeAffinity(spec.PersistentVolume, &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}})
	})
}
