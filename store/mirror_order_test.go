package store_test

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/store"
)

func TestAMirrorIsReadInTheOrderOfNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := store.NewMemory(store.MemoryOptions{History: 1})
		m := store.NewMirror[*v1.Pod](s, store.MirrorOptions{})
		onNode := store.NewIndex(m, func(pod *v1.Pod) []string { return []string{pod.Spec.NodeName} })
		names := []string{"a/9", "b/1", "b/5", "c/0", "c/7", "d/3", "e/2"}
		pods := make([]*v1.Pod, 0, len(names))
		for i := range names {
			name := names[(i*3+2)%len(names)]
			pods = append(pods, &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: name[:1], Name: name[2:]}, Spec: v1.PodSpec{NodeName: "n"}})
			_, err := s.Create(t.Context(), pods[i])
			require.NoError(t, err)
		}
		var told []string
		go m.Follow(t.Context(), func(pod *v1.Pod) { told = append(told, store.NameOf(pod).String()) })
		synctest.Wait()
		assert.Equal(t, names, namesOf(m.All()))
		assert.Equal(t, names, namesOf(onNode.Get("n")))
		assert.Equal(t, names, told)
	})
}

func namesOf(pods []*v1.Pod) []string {
	var names []string
	for _, pod := range pods {
		names = append(names, store.NameOf(pod).String())
	}
	return names
}
