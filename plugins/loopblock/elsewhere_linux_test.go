package loopblock_test

import (
	"io/fs"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/volume"
)

// An image of another node is not missing because this node does not have it. And this node may have another image of that name.
func TestAVolumeOfAnotherNodeIsNotDeletedHere(t *testing.T) {
	named := func(name string) v1.NodeSelectorTerm {
		return v1.NodeSelectorTerm{MatchFields: []v1.NodeSelectorRequirement{
			{Key: "metadata.name", Operator: v1.NodeSelectorOpIn, Values: []string{name}},
		}}
	}
	labelled := func(key, value string) v1.NodeSelectorTerm {
		return v1.NodeSelectorTerm{MatchExpressions: []v1.NodeSelectorRequirement{
			{Key: key, Operator: v1.NodeSelectorOpIn, Values: []string{value}},
		}}
	}
	for what, c := range map[string]struct {
		allowed []v1.NodeSelectorTerm
		isHere  bool
	}{
		"no affinity":             {nil, true},
		"the name of this node":   {[]v1.NodeSelectorTerm{named(nodeName)}, true},
		"the name of another":     {[]v1.NodeSelectorTerm{named("node-2")}, false},
		"the label of this node":  {[]v1.NodeSelectorTerm{labelled(v1.LabelHostname, nodeName)}, true},
		"the label of another":    {[]v1.NodeSelectorTerm{labelled(v1.LabelHostname, "node-2")}, false},
		"the label of several":    {[]v1.NodeSelectorTerm{labelled("rack", "1")}, false},
		"this node among several": {[]v1.NodeSelectorTerm{named("node-2"), named(nodeName)}, true},
	} {
		t.Run(what, func(t *testing.T) {
			n := newNode(t)
			for _, image := range []string{"here", "missing"} {
				spec := n.provision("here")
				spec.PersistentVolume.Spec.CSI.VolumeHandle = image
				if c.allowed != nil {
					spec.PersistentVolume.Spec.NodeAffinity = &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: c.allowed}}
				}
				deleter, err := n.plugin.NewDeleter(spec)
				if err == nil {
					err = deleter.Delete(t.Context())
				}
				if !c.isHere {
					require.ErrorIs(t, err, volume.ErrNodeAffinity, image)
					assert.FileExists(t, n.image("here"))
					continue
				}
				require.NoError(t, err, image)
			}
		})
	}
}

// A missing directory of images, such as that of a disk that is not mounted, says nothing about the image.
func TestAnImageIsGoneOnlyWhereTheDirectoryIs(t *testing.T) {
	n := newNode(t)
	spec := n.provision("pv")
	require.NoError(t, os.Rename(n.images, n.images+"-away"))
	require.ErrorIs(t, n.tryDelete(spec), fs.ErrNotExist)
	require.NoError(t, os.Rename(n.images+"-away", n.images))
	require.NoError(t, n.tryDelete(spec))
	assert.NoFileExists(t, n.image("pv"))
	require.NoError(t, n.tryDelete(spec))
}
