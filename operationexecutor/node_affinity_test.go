package operationexecutor_test

import (
	"context"
	"maps"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

// nodeLabels are the labels of the node, or why they are not known.
type nodeLabels struct {
	labels map[string]string
	err    error
	asked  int
}

func (n *nodeLabels) NodeLabels(context.Context) (map[string]string, error) {
	n.asked++
	return n.labels, n.err
}

func labelled(labels *nodeLabels) func(o *operationexecutor.GeneratorOptions) {
	return func(o *operationexecutor.GeneratorOptions) { o.NodeLabels = labels }
}

func need(key string, operator v1.NodeSelectorOperator, values ...string) v1.NodeSelectorRequirement {
	return v1.NodeSelectorRequirement{Key: key, Operator: operator, Values: values}
}

func exprs(requirements ...v1.NodeSelectorRequirement) v1.NodeSelectorTerm {
	return v1.NodeSelectorTerm{MatchExpressions: requirements}
}

func fields(requirements ...v1.NodeSelectorRequirement) v1.NodeSelectorTerm {
	return v1.NodeSelectorTerm{MatchFields: requirements}
}

// TestNodeAffinity is a part of acceptance line 18: every operator, terms that are alternatives, requirements that all hold,
// and all of it before anything is done.
func TestNodeAffinity(t *testing.T) {
	const (
		in, notIn  = v1.NodeSelectorOpIn, v1.NodeSelectorOpNotIn
		exists, no = v1.NodeSelectorOpExists, v1.NodeSelectorOpDoesNotExist
		gt, lt     = v1.NodeSelectorOpGt, v1.NodeSelectorOpLt
		zone, disk = "topology.kubernetes.io/zone", "disks"
		allowed    = "allowed"
		refused    = "refused"
		malformed  = "malformed"
	)
	terms := func(t ...v1.NodeSelectorTerm) []v1.NodeSelectorTerm { return t }
	one := func(key string, operator v1.NodeSelectorOperator, values ...string) []v1.NodeSelectorTerm {
		return terms(exprs(need(key, operator, values...)))
	}
	for name, test := range map[string]struct {
		terms []v1.NodeSelectorTerm
		want  string
	}{
		"in":                                {one(zone, in, "x", "z"), allowed},
		"in, another":                       {one(zone, in, "x"), refused},
		"in, no such label":                 {one("missing", in, "x"), refused},
		"in, no values":                     {one(zone, in), malformed},
		"not in":                            {one(zone, notIn, "x"), allowed},
		"not in, the same":                  {one(zone, notIn, "x", "z"), refused},
		"not in, no such label":             {one("missing", notIn, "x"), allowed},
		"exists":                            {one(zone, exists), allowed},
		"exists, no such label":             {one("missing", exists), refused},
		"exists, with values":               {one(zone, exists, "z"), malformed},
		"does not exist":                    {one("missing", no), allowed},
		"does not exist, it does":           {one(zone, no), refused},
		"greater":                           {one(disk, gt, "3"), allowed},
		"greater, equal":                    {one(disk, gt, "4"), refused},
		"greater than no number":            {one(disk, gt, "many"), malformed},
		"greater, two values":               {one(disk, gt, "1", "2"), malformed},
		"greater, the label is no number":   {one(zone, gt, "1"), refused},
		"greater, no such label":            {one("missing", gt, "1"), refused},
		"less":                              {one(disk, lt, "5"), allowed},
		"less, equal":                       {one(disk, lt, "4"), refused},
		"an operator that does not exist":   {one(zone, "Like", "z"), malformed},
		"a key that is none":                {one("a b", exists), malformed},
		"all requirements of a term":        {terms(exprs(need(zone, in, "z"), need(disk, exists))), allowed},
		"one requirement that fails":        {terms(exprs(need(zone, in, "z"), need(disk, no))), refused},
		"the second term":                   {terms(exprs(need(zone, in, "x")), exprs(need(zone, in, "z"))), allowed},
		"the first term":                    {terms(exprs(need(zone, in, "z")), exprs(need(zone, in, "x"))), allowed},
		"the last requirement alone holds":  {terms(exprs(need(zone, in, "x"), need(disk, exists))), refused},
		"no terms":                          {nil, refused},
		"an empty term":                     {terms(exprs()), refused},
		"an empty term and one that allows": {terms(exprs(), exprs(need(zone, in, "z"))), allowed},
		"one that allows, then a malformed": {terms(exprs(need(zone, in, "z")), exprs(need(zone, in))), allowed},
		"a malformed one, then one allows":  {terms(exprs(need(zone, in)), exprs(need(zone, in, "z"))), allowed},
		"a malformed one, and a refusal":    {terms(exprs(need(zone, in)), exprs(need(zone, in, "x"))), malformed},
		"a malformed one after a failed":    {terms(exprs(need(zone, in, "x"), need(zone, in))), malformed},
		"the node's name":                   {terms(fields(need("metadata.name", in, string(node)))), allowed},
		"another name":                      {terms(fields(need("metadata.name", in, "other"))), refused},
		"not that name":                     {terms(fields(need("metadata.name", notIn, "other"))), allowed},
		"name and label":                    {terms(v1.NodeSelectorTerm{MatchFields: fields(need("metadata.name", in, string(node))).MatchFields, MatchExpressions: exprs(need(zone, in, "x")).MatchExpressions}), refused},
		"another field":                     {terms(fields(need("spec.x", in, "y"))), malformed},
		"one of two names":                  {terms(fields(need("metadata.name", in, "a", string(node)))), allowed},
		"none of two names":                 {terms(fields(need("metadata.name", notIn, "a", string(node)))), refused},
		"a name that no label could have":   {terms(fields(need("metadata.name", notIn, strings.Repeat("n", 100)))), allowed},
		"the name first, then no such one":  {terms(fields(need("metadata.name", in, string(node)), need("metadata.name", notIn, string(node)))), refused},
		"no name first, then the name":      {terms(fields(need("metadata.name", in, "a"), need("metadata.name", in, string(node)))), refused},
		"no name":                           {terms(fields(need("metadata.name", in))), malformed},
		"a name, greater":                   {terms(fields(need("metadata.name", gt, "1"))), malformed},
	} {
		t.Run(name, func(t *testing.T) {
			labels := &nodeLabels{labels: map[string]string{zone: "z", disk: "4"}}
			before := maps.Clone(labels.labels)
			w := newWorld(t, setup{attachable: true, stageable: true, generator: labelled(labels)})
			w.attached("data")
			v := w.toMount("data", "p")
			v.VolumeSpec.PersistentVolume.Spec.NodeAffinity = &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: test.terms}}
			op := w.ended(w.executor.MountVolume(t.Context(), v, operationexecutor.MountOptions{}, w.actual))
			assert.Equal(t, before, labels.labels)
			if test.want == allowed {
				require.NoError(t, op.Err())
				return
			}
			require.ErrorIs(t, op.Err(), map[string]error{refused: volume.ErrNodeAffinity, malformed: volume.ErrInvalid}[test.want])
			assert.Equal(t, operationexecutor.Final, op.Result().Class)
			assert.Empty(t, w.history.all(), "nothing is done before the node is known to be allowed")
			assert.Equal(t, []string{"Warning FailedMount p"}, w.recorder.all())
		})
	}
}

// TestLabelsAreAskedForOnlyWhereTheyMatter, and a mount waits while they are not known.
func TestLabelsAreAskedForOnlyWhereTheyMatter(t *testing.T) {
	labels := &nodeLabels{err: errBroken}
	w := newWorld(t, setup{generator: labelled(labels)})
	w.attached("data")
	w.succeeded(w.mount("data", "p"))
	v := w.toMount("data", "q")
	v.VolumeSpec.PersistentVolume.Spec.NodeAffinity = &v1.VolumeNodeAffinity{}
	w.succeeded(w.executor.MountVolume(t.Context(), v, operationexecutor.MountOptions{}, w.actual))
	assert.Zero(t, labels.asked)

	v.VolumeSpec.PersistentVolume.Spec.NodeAffinity.Required = &v1.NodeSelector{}
	op := w.ended(w.executor.MountVolume(t.Context(), v, operationexecutor.MountOptions{}, w.actual))
	require.ErrorIs(t, op.Err(), errBroken)
	assert.Equal(t, operationexecutor.Transient, op.Result().Class)
}
