package main

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/volumekit/volumekit/volume"
)

// describe measures the volumes of a pod that is ready, for the table.
func (a *agent) describe(ctx context.Context, pod *v1.Pod, begun time.Time) *readyPod {
	name := volume.GetUniquePodName(pod)
	mounted := a.manager.GetMountedVolumesForPod(name)
	ready := &readyPod{pod: pod, name: pod.Namespace + "/" + pod.Name}
	for _, v := range a.manager.Status().Volumes {
		if v.PodUID != pod.UID {
			continue
		}
		r := row{
			Pod: ready.name, Volume: v.OuterName, Plugin: v.Plugin, Phase: string(v.Phase), Path: v.Path, ReadOnly: v.ReadOnly,
		}
		if at := a.progress.readyAt(mounting{pod: name, volume: v.Volume}); !at.IsZero() {
			r.ReadyMillis = float64(at.Sub(begun)) / float64(time.Millisecond)
		}
		r.Size, r.Used = measure(ctx, mounted[v.OuterName].Mounter)
		ready.volumes = append(ready.volumes, r)
	}
	return ready
}

// measure returns the size of a volume and what is used of it, in bytes; nil where that cannot be known.
func measure(ctx context.Context, mounter volume.Mounter) (size, used *int64) {
	if mounter == nil {
		return nil, nil
	}
	m, err := mounter.GetMetrics(ctx)
	if err != nil {
		return nil, nil // hostPath, for one, cannot be measured
	}
	return bytesOf(m.Capacity), bytesOf(m.Used)
}

func bytesOf(q *resource.Quantity) *int64 {
	if q == nil {
		return nil
	}
	n := q.Value()
	return &n
}
