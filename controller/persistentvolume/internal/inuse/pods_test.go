package inuse

import (
	"testing"

	"github.com/stretchr/testify/assert"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/controller/internal/work"
)

// An answer is good for the very lookup, until it is dropped.
func TestAnAnswerIsNeverOld(t *testing.T) {
	by, pods := work.Item{Kind: work.Claim, Name: types.NamespacedName{Name: "c"}}, []*v1.Pod{{ObjectMeta: metav1.ObjectMeta{Name: "p"}}}
	first, second := podsOf{uid: "first", claim: by.Name}, podsOf{uid: "second", claim: by.Name}
	u := newLookups[podsOf, []*v1.Pod]()
	u.add("", by, first)
	assert.Equal(t, map[work.Item]podsOf{by: first}, u.begin(""))
	assert.Empty(t, u.begin(""), "what is asked from now on needs another list")
	u.keep(by, first, pods)
	_, answered := u.answer(by, second)
	assert.False(t, answered, "the claim was made again")
	got, answered := u.answer(by, first)
	assert.True(t, answered)
	assert.Equal(t, pods, got)
	u.drop(by)
	_, answered = u.answer(by, first)
	assert.False(t, answered)
}
