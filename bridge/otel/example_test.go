package otel_test

import (
	"context"
	"fmt"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/bridge/otel"
	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager"
)

// The wait of a pod is a span, and the operations for it are its children.
func Example() {
	recorder := tracetest.NewSpanRecorder() // in the place of an exporter
	tracer := otel.New(otel.Options{TracerProvider: sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder))})
	mounter := fake.NewMounter(fake.MounterOptions{})
	plugins := volume.NewVolumePluginMgr(fake.NewHost("node-1"))
	check(plugins.InitPlugins(context.Background(), fake.NewPlugin(fake.PluginOptions{Mounter: mounter})))
	manager, err := volumemanager.New(plugins, volumemanager.Options{Mounter: mounter, NoRecords: true, Observer: tracer})
	check(err)
	tracer.AddVolumePods(manager)
	done := make(chan error, 1)
	go func() { done <- manager.Run(context.Background()) }()

	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "web-1"}}
	pod.Spec.Volumes = []v1.Volume{{Name: "data", VolumeSource: v1.VolumeSource{CSI: &v1.CSIVolumeSource{Driver: "fake.example.com"}}}}
	pod.Spec.Containers = []v1.Container{{Name: "main", VolumeMounts: []v1.VolumeMount{{Name: "data", MountPath: "/data"}}}}
	waiting, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	ctx, wait := tracer.BeginPod(waiting, pod)
	check(manager.AddPod(ctx, pod))
	manager.PodsComplete()
	err = manager.WaitForAttachAndMount(ctx, pod)
	wait.End(err)
	check(err)
	check(manager.Stop(context.Background()))
	check(<-done)

	ended := recorder.Ended()
	for _, span := range ended {
		if span.Name() == "pod_volumes" || span.Name() == "volume_mount" {
			fmt.Println(span.Name(), span.Status().Code)
		}
	}
	// Unordered output:
	// pod_volumes Unset
	// volume_mount Unset
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
