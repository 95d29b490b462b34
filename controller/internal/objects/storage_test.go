package objects

import (
	"testing"

	"github.com/stretchr/testify/assert"
	v1 "k8s.io/api/core/v1"
)

// onNodes is an affinity with one term for each group of nodes.
func onNodes(key string, groups ...[]string) *v1.VolumeNodeAffinity {
	var terms []v1.NodeSelectorTerm
	for _, nodes := range groups {
		terms = append(terms, v1.NodeSelectorTerm{MatchExpressions: []v1.NodeSelectorRequirement{{Key: key, Operator: v1.NodeSelectorOpIn, Values: nodes}}})
	}
	return &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: terms}}
}

// Affinities that are only written otherwise are no proof that a path is on another node.
func TestPathsAreDifferentStorageOnlyOnDifferentNodes(t *testing.T) {
	const host = v1.LabelHostname
	for name, test := range map[string]struct {
		a, b   *v1.VolumeNodeAffinity
		shared bool
	}{
		"no affinity":                {nil, nil, true},
		"one without an affinity":    {onNodes(host, []string{"a"}), nil, true},
		"the same node":              {onNodes(host, []string{"a"}), onNodes(host, []string{"a"}), true},
		"different nodes":            {onNodes(host, []string{"a"}), onNodes(host, []string{"b"}), false},
		"a node in both lists":       {onNodes(host, []string{"a"}), onNodes(host, []string{"b", "a"}), true},
		"a node in one of two terms": {onNodes(host, []string{"a"}), onNodes(host, []string{"b"}, []string{"a"}), true},
		"different nodes, two terms": {onNodes(host, []string{"a"}), onNodes(host, []string{"b"}, []string{"c"}), false},
		"other labels":               {onNodes(host, []string{"a"}), onNodes("rack", []string{"r1"}), true},
		"nothing required":           {onNodes(host, []string{"a"}), &v1.VolumeNodeAffinity{}, true},
	} {
		t.Run(name, func(t *testing.T) {
			pv := func(affinity *v1.VolumeNodeAffinity, source v1.PersistentVolumeSource) *v1.PersistentVolume {
				return &v1.PersistentVolume{Spec: v1.PersistentVolumeSpec{NodeAffinity: affinity, PersistentVolumeSource: source}}
			}
			path := v1.PersistentVolumeSource{HostPath: &v1.HostPathVolumeSource{Path: "/data/"}}
			local := v1.PersistentVolumeSource{Local: &v1.LocalVolumeSource{Path: "/data"}}
			assert.Equal(t, test.shared, MayContainStorageOf(pv(test.a, path), pv(test.b, local)))
			assert.Equal(t, test.shared, MayContainStorageOf(pv(test.b, local), pv(test.a, path)))
		})
	}
}

// A directory contains the volumes in it, and is not contained in them.
func TestADirectoryContainsWhatIsBelowIt(t *testing.T) {
	host := func(path string) v1.PersistentVolumeSource {
		return v1.PersistentVolumeSource{HostPath: &v1.HostPathVolumeSource{Path: path}}
	}
	nfs := func(server, path string) v1.PersistentVolumeSource {
		return v1.PersistentVolumeSource{NFS: &v1.NFSVolumeSource{Server: server, Path: path}}
	}
	for name, test := range map[string]struct {
		above, below v1.PersistentVolumeSource
		contains     bool
	}{
		"a child":                     {host("/data"), host("/data/x"), true},
		"far below":                   {host("/data/"), host("/data/x/y/../z"), true},
		"the root":                    {host("/"), host("/data"), true},
		"only the beginning matches":  {host("/data"), host("/data-2"), false},
		"a local volume":              {host("/data"), v1.PersistentVolumeSource{Local: &v1.LocalVolumeSource{Path: "/data/x"}}, true},
		"an export":                   {nfs("s", "/data"), nfs("s", "/data/x"), true},
		"a path written otherwise":    {host("//data/./a/.."), host("/data//x/"), true},
		"an export written otherwise": {nfs("s", "/data/"), nfs("s", "//data/x"), true},
		"a server written otherwise":  {nfs("S.example.com", "/data"), nfs("s.Example.com.", "/data/x"), true},
		"a server with other address": {nfs("10.0.0.1", "/data"), nfs("10.0.0.11", "/data/x"), false},
		"an export of another":        {nfs("s", "/data"), nfs("t", "/data/x"), false},
		"a path and an export":        {host("/data"), nfs("s", "/data/x"), false},
		"drivers": {
			v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: "d", VolumeHandle: "/data"}},
			v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: "d", VolumeHandle: "/data/x"}}, false,
		},
		"no source": {v1.PersistentVolumeSource{}, v1.PersistentVolumeSource{}, false},
	} {
		t.Run(name, func(t *testing.T) {
			above := &v1.PersistentVolume{Spec: v1.PersistentVolumeSpec{PersistentVolumeSource: test.above}}
			below := &v1.PersistentVolume{Spec: v1.PersistentVolumeSpec{PersistentVolumeSource: test.below}}
			assert.Equal(t, test.contains, MayContainStorageOf(above, below))
			assert.False(t, MayContainStorageOf(below, above))
		})
	}
}
