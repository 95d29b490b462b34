package volume_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/volume"
)

func runs(name string) v1.ContainerStatus {
	return v1.ContainerStatus{Name: name, State: v1.ContainerState{Running: &v1.ContainerStateRunning{}}}
}

func waits(name string) v1.ContainerStatus {
	return v1.ContainerStatus{Name: name, State: v1.ContainerState{Waiting: &v1.ContainerStateWaiting{}}}
}

func ended(name string) v1.ContainerStatus {
	return v1.ContainerStatus{Name: name, State: v1.ContainerState{Terminated: &v1.ContainerStateTerminated{}}}
}

// A status that is missing does not say that a pod has ended.
func TestAPodHasEndedWhenItsStatusSaysSo(t *testing.T) {
	for name, c := range map[string]struct {
		phase    v1.PodPhase
		statuses []v1.ContainerStatus
		runs     bool // it is not being deleted
		want     bool
	}{
		"succeeded":                             {phase: v1.PodSucceeded, runs: true, want: true},
		"failed":                                {phase: v1.PodFailed, runs: true, want: true},
		"not being deleted":                     {phase: v1.PodRunning, statuses: []v1.ContainerStatus{ended("init"), ended("a"), ended("b")}, runs: true},
		"no statuses":                           {phase: v1.PodRunning},
		"no phase and no statuses":              {},
		"one status is missing":                 {statuses: []v1.ContainerStatus{ended("init"), ended("a")}},
		"one status is empty":                   {statuses: []v1.ContainerStatus{ended("init"), ended("a"), {Name: "b"}}},
		"one container runs":                    {statuses: []v1.ContainerStatus{ended("init"), ended("a"), runs("b")}},
		"all have ended, or were never started": {statuses: []v1.ContainerStatus{ended("init"), ended("a"), waits("b")}, want: true},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &v1.Pod{
				Spec: v1.PodSpec{
					InitContainers: []v1.Container{{Name: "init"}},
					Containers:     []v1.Container{{Name: "a"}, {Name: "b"}},
				},
				Status: v1.PodStatus{Phase: c.phase, ContainerStatuses: c.statuses},
			}
			if !c.runs {
				pod.DeletionTimestamp = &metav1.Time{}
			}
			assert.Equal(t, c.want, volume.IsPodTerminated(pod))
		})
	}
}
