// Package otel records the operations of a node and its controllers as OpenTelemetry spans. It is a module of its own, for programs that
// use OpenTelemetry.
//
//	tracer := otel.New(otel.Options{TracerProvider: provider})
//	manager, err := volumemanager.New(plugins, volumemanager.Options{Observer: tracer})
//	tracer.AddVolumePods(manager)
//
//	ctx, wait := tracer.BeginPod(ctx, pod)
//	err = manager.AddPod(ctx, pod)
//	if err == nil {
//		err = manager.WaitForAttachAndMount(ctx, pod)
//	}
//	wait.End(err)
//
// [operationexecutor.Observers] joins a [Tracer] with other observers, such as one for metrics.
//
// # Spans
//
// An operation is a span. Each of its steps, such as SetUp, is a child that is recorded when the step has ended. The context of the
// plugin's calls carries the span of the operation, so spans of the plugin, or of a CSI driver behind it, are children of the operation
// and not of the step. docs/traces.md lists all spans and attributes.
//
// While a pod waits, between [Tracer.BeginPod] and [PodSpan.End], the operations for this pod are children of its span.
// An attachment, or its verification, is a child of the longest-waiting pod that uses the volume; sampled pods come
// first. All other operations continue the span of the context of the manager's or controller's Run. Without such a
// span they are roots.
//
// # Cost
//
// The tracer does not keep a span that is not sampled. BenchmarkNotSampled measures such an operation. With a tracer,
// an operation has its own context and cannot share that of the operation before it, which costs the executor some
// allocations.
package otel
