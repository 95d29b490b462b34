package otel

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager"
)

// BenchmarkAttachmentBesideManyPods finds the pod of an attachment while many pods wait.
func BenchmarkAttachmentBesideManyPods(b *testing.B) {
	for _, n := range []int{1, 100, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			tracer := New(Options{TracerProvider: sdktrace.NewTracerProvider()})
			mounter := fake.NewMounter(fake.MounterOptions{})
			plugins := volume.NewVolumePluginMgr(fake.NewHost("node-1"))
			require.NoError(b, plugins.InitPlugins(b.Context(), fake.NewPlugin(fake.PluginOptions{Mounter: mounter})))
			manager, err := volumemanager.New(plugins, volumemanager.Options{Mounter: mounter, NoRecords: true})
			require.NoError(b, err)
			tracer.AddVolumePods(manager)
			ended := make(chan error, 1)
			go func() { ended <- manager.Run(context.WithoutCancel(b.Context())) }()
			for i := range n {
				pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: fmt.Sprint("web-", i), UID: types.UID(fmt.Sprint("web-", i))}}
				pod.Spec.Volumes = []v1.Volume{{Name: "data", VolumeSource: v1.VolumeSource{CSI: &v1.CSIVolumeSource{
					Driver: "fake.example.com", VolumeAttributes: map[string]string{fake.ParameterHandle: fmt.Sprint("disk-", i)}}}}}
				pod.Spec.Containers = []v1.Container{{Name: "main", VolumeMounts: []v1.VolumeMount{{Name: "data", MountPath: "/data"}}}}
				ctx, _ := tracer.BeginPod(b.Context(), pod)
				require.NoError(b, manager.AddPod(ctx, pod))
				require.NoError(b, manager.WaitForAttachAndMount(ctx, pod))
			}
			o := operationexecutor.OperationInfo{Kind: operationexecutor.OpAttach, VolumeName: "example.com/fake/disk-0"}
			b.ReportAllocs()
			for b.Loop() {
				require.NotNil(b, tracer.podOf(o))
			}
			b.StopTimer()
			require.NoError(b, manager.Stop(context.Background()))
			<-ended
		})
	}
}
