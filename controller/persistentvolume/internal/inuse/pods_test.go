package inuse

import (
	"testing"

	"github.com/stretchr/testify/assert"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/controller/internal/work"
)

// An answer is good for the very lookup, once.
func TestAnAnswerIsNeverOld(t *testing.T) {
	by, pods := work.Item{Kind: work.Claim, Name: types.NamespacedName{Name: "c"}}, []*v1.Pod{{ObjectMeta: metav1.ObjectMeta{Name: "p"}}}
	first, second := lookup{uid: "first", claim: by.Name}, lookup{uid: "second", claim: by.Name}
	u := newLookups()
	u.add(by, first)
	assert.Equal(t, map[work.Item]lookup{by: first}, u.begin(""))
	assert.Empty(t, u.begin(""), "what is asked from now on needs another list")
	u.keep(by, answer{first, pods})
	_, answered := u.take(by, second)
	assert.False(t, answered, "the claim was made again")
	_, answered = u.take(by, first)
	assert.False(t, answered, "it was thrown away")
	u.keep(by, answer{first, pods})
	got, answered := u.take(by, first)
	assert.True(t, answered)
	assert.Equal(t, pods, got)
	_, answered = u.take(by, first)
	assert.False(t, answered)
	u.keep(by, answer{first, pods})
	u.drop(by)
	_, answered = u.take(by, first)
	assert.False(t, answered)
}
