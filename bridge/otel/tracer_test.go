package otel

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	otelapi "go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager"
)

var _ VolumePods = (*volumemanager.Manager)(nil)

func newTracer() (*Tracer, *tracetest.SpanRecorder) {
	recorder := tracetest.NewSpanRecorder()
	return New(Options{TracerProvider: sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder))}), recorder
}

// seeing is a plugin that keeps the spans of the contexts with which volumes are set up.
type seeing struct {
	*fake.Plugin
	setUps []trace.SpanContext
}

func (p *seeing) NewMounter(spec *volume.Spec, pod *v1.Pod) (volume.Mounter, error) {
	mounter, err := p.Plugin.NewMounter(spec, pod)
	return seeingMounter{mounter, p}, err
}

type seeingMounter struct {
	volume.Mounter
	plugin *seeing
}

func (m seeingMounter) SetUp(ctx context.Context, args volume.MounterArgs) error {
	m.plugin.setUps = append(m.plugin.setUps, trace.SpanContextFromContext(ctx))
	return m.Mounter.SetUp(ctx, args)
}

// TestAPodIsATrace runs a manager with a fake plugin that fails once: the wait has the attachment and both mounts as children, these
// have their steps, and the plugin's calls have their spans.
func TestAPodIsATrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tracer, recorder := newTracer()
		mounter := fake.NewMounter(fake.MounterOptions{})
		plugin := &seeing{Plugin: fake.NewPlugin(fake.PluginOptions{Mounter: mounter})}
		plugin.Inject(fake.MethodSetUp, fake.FailN(1, errors.New("refused")))
		plugins := volume.NewVolumePluginMgr(fake.NewHost("node-1"))
		require.NoError(t, plugins.InitPlugins(t.Context(), plugin))
		manager, err := volumemanager.New(plugins, volumemanager.Options{Mounter: mounter, NoRecords: true, Observer: tracer})
		require.NoError(t, err)
		ended := make(chan error, 1)
		go func() { ended <- manager.Run(context.WithoutCancel(t.Context())) }()
		pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "web-1"}}
		pod.Spec.Volumes = []v1.Volume{{Name: "data", VolumeSource: v1.VolumeSource{CSI: &v1.CSIVolumeSource{
			Driver: "fake.example.com", VolumeAttributes: map[string]string{fake.ParameterHandle: "disk-1"}}}}}
		pod.Spec.Containers = []v1.Container{{Name: "main", VolumeMounts: []v1.VolumeMount{{Name: "data", MountPath: "/data"}}}}

		tracer.AddVolumePods(manager)
		ctx, wait := tracer.BeginPod(t.Context(), pod)
		require.NoError(t, manager.AddPod(ctx, pod))
		manager.PodsComplete()
		require.NoError(t, manager.WaitForAttachAndMount(ctx, pod))
		wait.End(nil)
		require.NoError(t, manager.RemovePod(pod.UID))
		require.NoError(t, manager.WaitForNodeEmpty(t.Context()))
		require.NoError(t, manager.Stop(context.Background()))
		require.NoError(t, <-ended)

		spans := map[trace.SpanID]sdktrace.ReadOnlySpan{}
		for _, s := range recorder.Ended() {
			spans[s.SpanContext().SpanID()] = s
		}
		tree := map[string]int{}
		for _, s := range spans {
			parent := ""
			if above := spans[s.Parent().SpanID()]; above != nil {
				parent = above.Name()
			}
			tree[parent+" > "+s.Name()]++
		}
		for _, edge := range []string{" > pod_volumes", "pod_volumes > volume_attach", "volume_attach > Attach", " > volume_unmount", " > volume_detach"} {
			assert.Equal(t, 1, tree[edge], "%s in %v", edge, tree)
		}
		assert.Equal(t, 2, tree["pod_volumes > volume_mount"])
		assert.Equal(t, 2, tree["volume_mount > SetUp"])
		require.Len(t, plugin.setUps, 2)
		for i, want := range []codes.Code{codes.Error, codes.Unset} {
			span := spans[plugin.setUps[i].SpanID()]
			require.NotNil(t, span)
			assert.Equal(t, "volume_mount", span.Name())
			assert.Equal(t, want, span.Status().Code)
		}
		assert.Empty(t, tracer.running)
		assert.Empty(t, tracer.pods)
	})
}

// TestAnAttachmentIsOfThePodThatHasWaitedLongest: for all pods of a volume there is one attachment.
func TestAnAttachmentIsOfThePodThatHasWaitedLongest(t *testing.T) {
	tracer, recorder := newTracer()
	unsampled := New(Options{TracerProvider: sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.NeverSample()))})
	o := operationexecutor.OperationInfo{Kind: operationexecutor.OpAttach, VolumeName: "example.com/disk/a"}
	users := podsOfVolumes{}
	tracer.AddVolumePods(users)
	parent, _ := unsampled.tracer.Start(t.Context(), "never sampled")
	var spans []*PodSpan
	for i := range 20 {
		uid := fmt.Sprint("pod-", i)
		users[o.VolumeName] = append([]volume.UniquePodName{volume.UniquePodName(uid)}, users[o.VolumeName]...)
		ctx := parent
		if i > 0 {
			ctx = t.Context()
		}
		_, span := tracer.BeginPod(ctx, &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid)}})
		spans = append(spans, span)
	}
	for _, kind := range []operationexecutor.OperationKind{operationexecutor.OpAttach, operationexecutor.OpDetach} {
		o.Kind = kind
		tracer.OperationContext(t.Context(), o)
		tracer.OperationFinished(o, operationexecutor.Result{})
	}
	require.Len(t, recorder.Ended(), 2)
	assert.Equal(t, spans[1].span.SpanContext().SpanID(), recorder.Ended()[0].Parent().SpanID(), "the first that is sampled")
	assert.False(t, recorder.Ended()[1].Parent().IsValid(), "no pod waits for a detachment")
	for _, span := range spans {
		span.End(nil)
	}
	o.Kind = operationexecutor.OpAttach
	tracer.OperationContext(t.Context(), o)
	tracer.OperationFinished(o, operationexecutor.Result{})
	ended := recorder.Ended()
	assert.False(t, ended[len(ended)-1].Parent().IsValid(), "no pod waits any more")
}

// podsOfVolumes are the pods that use volumes.
type podsOfVolumes map[v1.UniqueVolumeName][]volume.UniquePodName

func (p podsOfVolumes) PodsOfVolume(name v1.UniqueVolumeName) []volume.UniquePodName { return p[name] }

// TestThePageNamesEverySpanAndAttribute compares docs/traces.md with what is recorded of an operation that has all there is.
func TestThePageNamesEverySpanAndAttribute(t *testing.T) {
	page, err := os.ReadFile("../../docs/traces.md")
	require.NoError(t, err)
	tracer, recorder := newTracer()
	o := operationexecutor.OperationInfo{
		Kind: operationexecutor.OpAttach, VolumeName: "example.com/disk/a", PluginName: "example.com/disk", PodName: "web-1", NodeName: "node-1",
	}
	_, wait := tracer.BeginPod(t.Context(), &v1.Pod{})
	tracer.OperationContext(t.Context(), o)
	tracer.OperationStepped(o, operationexecutor.Step{Name: "Attach"})
	tracer.OperationFinished(o, operationexecutor.Result{})
	wait.End(nil)
	require.Len(t, recorder.Ended(), 3)
	for _, span := range recorder.Ended() {
		assert.Contains(t, string(page), "`"+span.InstrumentationScope().Name+"`")
		assert.Contains(t, string(page), "`"+span.Name()+"`")
		for _, attribute := range span.Attributes() {
			assert.Contains(t, string(page), "`"+string(attribute.Key)+"`")
		}
	}
}

func TestWithoutAProviderTheGlobalOneIsUsed(t *testing.T) {
	recorder := tracetest.NewSpanRecorder()
	before := otelapi.GetTracerProvider()
	otelapi.SetTracerProvider(sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder)))
	t.Cleanup(func() { otelapi.SetTracerProvider(before) })
	_, wait := New(Options{}).BeginPod(t.Context(), &v1.Pod{})
	wait.End(errors.New("too slow"))
	require.Len(t, recorder.Ended(), 1)
	assert.Equal(t, "too slow", recorder.Ended()[0].Status().Description)
}

func TestManyOperationsAtOnceEndTheirOwnSpans(t *testing.T) {
	tracer, recorder := newTracer()
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			o := operationexecutor.OperationInfo{Kind: operationexecutor.OpMount, VolumeName: v1.UniqueVolumeName(fmt.Sprint("example.com/disk/", i)), Started: time.Now()}
			ctx := tracer.OperationContext(t.Context(), o)
			assert.True(t, trace.SpanContextFromContext(ctx).IsSampled())
			tracer.OperationStepped(o, operationexecutor.Step{Name: "SetUp", Started: time.Now(), Err: errors.New("refused")})
			tracer.OperationFinished(o, operationexecutor.Result{Class: operationexecutor.Final, Err: errors.New("refused")})
		})
	}
	wg.Wait()
	assert.Len(t, recorder.Ended(), 100)
	for _, s := range recorder.Ended() {
		assert.Equal(t, "refused", s.Status().Description)
		assert.Len(t, s.Events(), 1)
	}
	assert.Empty(t, tracer.running)
}

// BenchmarkNotSampled is what a tracer adds to an operation with six steps that is not sampled.
func BenchmarkNotSampled(b *testing.B) {
	tracer := New(Options{TracerProvider: sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.NeverSample()))})
	o := operationexecutor.OperationInfo{Kind: operationexecutor.OpMount, VolumeName: "example.com/disk/a", PodName: "web-1", Started: time.Now()}
	b.ReportAllocs()
	for b.Loop() {
		tracer.OperationContext(b.Context(), o)
		for range 6 {
			tracer.OperationStepped(o, operationexecutor.Step{Name: "SetUp"})
		}
		tracer.OperationFinished(o, operationexecutor.Result{})
	}
}
