package main

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/volumekit/volumekit/examples/internal/show"
	"github.com/volumekit/volumekit/volume"
)

// describe measures the volumes of the pods, which are ready, for the table.
func (a *agent) describe(ctx context.Context, begun time.Time) []show.Row {
	rows := []show.Row{}
	for _, pod := range a.pods {
		name := volume.GetUniquePodName(pod)
		mounted := a.manager.GetMountedVolumesForPod(name)
		for _, v := range a.manager.PodStatus(pod.UID) {
			r := show.Row{
				Pod: v.PodName.String(), Volume: v.OuterName, Plugin: v.Plugin, Phase: string(v.Phase), Path: v.Path, ReadOnly: v.ReadOnly,
			}
			if at := a.progress.ReadyAt(name, v.Volume); !at.IsZero() {
				r.ReadyMillis = float64(at.Sub(begun)) / float64(time.Millisecond)
			}
			r.Size, r.Used = measure(ctx, mounted[v.OuterName].Mounter)
			rows = append(rows, r)
		}
	}
	return rows
}

// measure returns the size and the usage of a volume, in bytes; nil if they are unknown.
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
