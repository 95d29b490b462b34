package otel

import (
	"cmp"
	"context"
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	otelapi "go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager"
)

const (
	// scope is the name of the instrumentation scope: the path of this module.
	scope = "github.com/volumekit/volumekit/bridge/otel"
	// podSpanName is the name of a span that BeginPod begins.
	podSpanName = "pod_volumes"
)

// Attributes of spans. docs/traces.md explains them.
const (
	operationKey    = attribute.Key("volumekit.operation")
	volumeKey       = attribute.Key("volumekit.volume")
	pluginKey       = attribute.Key("volumekit.plugin")
	classKey        = attribute.Key("volumekit.class")
	podUIDKey       = attribute.Key("k8s.pod.uid")
	podNameKey      = attribute.Key("k8s.pod.name")
	podNamespaceKey = attribute.Key("k8s.namespace.name")
	nodeKey         = attribute.Key("k8s.node.name")
)

// Options say where spans go.
type Options struct {
	// TracerProvider makes the spans; nil means the global one.
	TracerProvider trace.TracerProvider
}

// Tracer records operations as spans. It is an [operationexecutor.ContextObserver] for the options of a manager or a controller. Several
// managers and controllers may share one. Make it with [New]. All methods may be called from several goroutines at once.
type Tracer struct {
	tracer trace.Tracer

	mu      sync.Mutex // guards what follows; not held while a span begins or ends
	running map[operation]trace.Span
	pods    map[types.UID]*PodSpan
	begun   uint64 // how many pods have begun
}

var _ operationexecutor.ContextObserver = (*Tracer)(nil)

// New returns a tracer that has recorded nothing.
func New(options Options) *Tracer {
	provider := options.TracerProvider
	if provider == nil {
		provider = otelapi.GetTracerProvider()
	}
	return &Tracer{
		tracer:  provider.Tracer(scope),
		running: map[operation]trace.Span{},
		pods:    map[types.UID]*PodSpan{},
	}
}

// operation is what the information about an operation has from its begin to its end.
type operation struct {
	kind    operationexecutor.OperationKind
	volume  v1.UniqueVolumeName
	pod     volume.UniquePodName
	node    types.NodeName
	started int64
}

func operationOf(o operationexecutor.OperationInfo) operation {
	return operation{kind: o.Kind, volume: o.VolumeName, pod: o.PodName, node: o.NodeName, started: o.Started.UnixNano()}
}

// OperationContext implements operationexecutor.ContextObserver. It begins the span of the operation.
func (t *Tracer) OperationContext(ctx context.Context, o operationexecutor.OperationInfo) context.Context {
	parent := ctx
	if pod := t.podOf(o); pod != nil {
		parent = trace.ContextWithSpan(ctx, pod.span)
	}
	spanCtx, span := t.tracer.Start(parent, string(o.Kind), trace.WithTimestamp(o.Started), trace.WithAttributes(attributesOf(o)...))
	if !span.SpanContext().IsValid() { // The provider makes no spans: calls keep the context that they share.
		return ctx
	}
	if span.IsRecording() {
		t.keep(operationOf(o), span)
	}
	return spanCtx
}

// attributesOf returns what is known when an operation begins. The plugin is added at the end, because it may not be known yet.
func attributesOf(o operationexecutor.OperationInfo) []attribute.KeyValue {
	attributes := make([]attribute.KeyValue, 0, 5)
	attributes = append(attributes, operationKey.String(string(o.Kind)))
	if o.VolumeName != "" {
		attributes = append(attributes, volumeKey.String(string(o.VolumeName)))
	}
	if o.PodName != "" {
		attributes = append(attributes, podUIDKey.String(string(o.PodName)))
	}
	if o.NodeName != "" {
		attributes = append(attributes, nodeKey.String(string(o.NodeName)))
	}
	return attributes
}

// OperationStarted implements operationexecutor.Observer. The span has begun before.
func (t *Tracer) OperationStarted(operationexecutor.OperationInfo) {}

// OperationStepped implements operationexecutor.Observer. It records the step as a child of the operation.
func (t *Tracer) OperationStepped(o operationexecutor.OperationInfo, s operationexecutor.Step) {
	span := t.find(operationOf(o))
	if span == nil {
		return
	}
	parent := trace.ContextWithSpan(context.Background(), span) //nolint:forbidigo // An observer is given no context; the parent is all that is needed.
	_, step := t.tracer.Start(parent, s.Name, trace.WithTimestamp(s.Started))
	setError(step, s.Err)
	step.End(trace.WithTimestamp(s.Started.Add(s.Duration)))
}

// OperationFinished implements operationexecutor.Observer. It ends the span of the operation.
func (t *Tracer) OperationFinished(o operationexecutor.OperationInfo, r operationexecutor.Result) {
	span := t.take(operationOf(o))
	if span == nil {
		return
	}
	span.SetAttributes(classKey.String(r.Class.String()))
	if o.PluginName != "" {
		span.SetAttributes(pluginKey.String(o.PluginName))
	}
	setError(span, r.Err)
	span.End(trace.WithTimestamp(o.Started.Add(r.Duration)))
}

// setError records how what the span stands for failed. It does nothing if err is nil.
func setError(span trace.Span, err error) {
	if err == nil {
		return
	}
	span.RecordError(err)
	span.SetStatus(codes.Error, err.Error())
}

// keep keeps the span of an operation until it ends. Two executors of one program could begin operations that look the same in the
// same nanosecond; the span of the first then ends here.
func (t *Tracer) keep(o operation, span trace.Span) {
	t.mu.Lock()
	before := t.running[o]
	t.running[o] = span
	t.mu.Unlock()
	if before != nil {
		before.End()
	}
}

func (t *Tracer) find(o operation) trace.Span {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.running[o]
}

func (t *Tracer) take(o operation) trace.Span {
	t.mu.Lock()
	defer t.mu.Unlock()
	span := t.running[o]
	delete(t.running, o)
	return span
}

// PodVolumes is the part of a [volumemanager.Manager] that [Tracer.BeginPod] reads. Its method answers from memory.
type PodVolumes interface {
	// PodStatus returns where the volumes of a pod stand.
	PodStatus(uid types.UID) []volumemanager.VolumeStatus
}

// PodSpan is the wait of a pod for its volumes. [Tracer.BeginPod] makes it; the caller ends it.
type PodSpan struct {
	tracer  *Tracer
	uid     types.UID
	volumes PodVolumes
	span    trace.Span
	number  uint64 // of the pods, in the order in which they began
}

// BeginPod begins the span of a pod that waits for its volumes. Call it before AddPod, and call [PodSpan.End] when the wait has ended: the
// tracer keeps the span until then. The span is a child of the span of ctx, if there is one; the returned context carries it. volumes
// says which volumes the pod uses; if it is nil, attachments are no children of this pod. When a pod has begun twice, operations
// are children of the second span.
func (t *Tracer) BeginPod(ctx context.Context, pod *v1.Pod, volumes PodVolumes) (context.Context, *PodSpan) {
	ctx, span := t.tracer.Start(ctx, podSpanName, trace.WithAttributes(
		podUIDKey.String(string(pod.UID)), podNameKey.String(pod.Name), podNamespaceKey.String(pod.Namespace)))
	p := &PodSpan{tracer: t, uid: pod.UID, volumes: volumes, span: span}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.begun++
	p.number = t.begun
	t.pods[pod.UID] = p
	return ctx, p
}

// End ends the span, with err as its error. Operations that run go on as its children; later ones are not. A second call does nothing.
func (p *PodSpan) End(err error) {
	p.tracer.forget(p)
	setError(p.span, err)
	p.span.End()
}

func (t *Tracer) forget(p *PodSpan) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.pods[p.uid] == p {
		delete(t.pods, p.uid)
	}
}

// podOf returns the waiting pod whose child an operation is; nil if there is none. An attachment is for all pods that use the volume: it
// is a child of the one that has waited longest. Which volumes a pod uses is asked only of pods that are sampled.
func (t *Tracer) podOf(o operationexecutor.OperationInfo) *PodSpan {
	if o.PodName != "" {
		return t.pod(types.UID(o.PodName))
	}
	if o.Kind != operationexecutor.OpAttach && o.Kind != operationexecutor.OpVerifyControllerAttached {
		return nil // No pod becomes ready by it.
	}
	for _, p := range t.sampledPods() {
		if p.uses(o.VolumeName) {
			return p
		}
	}
	return nil
}

func (t *Tracer) pod(uid types.UID) *PodSpan {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.pods[uid]
}

// sampledPods returns the sampled pods that wait and say which volumes they use, in the order in which they began.
func (t *Tracer) sampledPods() []*PodSpan {
	t.mu.Lock()
	defer t.mu.Unlock()
	var sampled []*PodSpan
	for _, p := range t.pods {
		if p.volumes != nil && p.span.SpanContext().IsSampled() {
			sampled = append(sampled, p)
		}
	}
	slices.SortFunc(sampled, func(a, b *PodSpan) int { return cmp.Compare(a.number, b.number) })
	return sampled
}

func (p *PodSpan) uses(name v1.UniqueVolumeName) bool {
	for _, s := range p.volumes.PodStatus(p.uid) {
		if s.Volume == name {
			return true
		}
	}
	return false
}
