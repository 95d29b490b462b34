package otel

import (
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

// Options configures a [Tracer].
type Options struct {
	// TracerProvider makes the spans; nil means the global one.
	TracerProvider trace.TracerProvider
}

// Tracer records operations as spans. It is an [operationexecutor.ContextObserver] for the options of a manager or a controller. Several
// managers and controllers may share one. Make it with [New]. All methods may be called from several goroutines at once.
type Tracer struct {
	tracer trace.Tracer

	mu      sync.Mutex // guards the fields below; not held while a span begins or ends
	running map[operation]trace.Span
	pods    map[types.UID]*PodSpan
	begun   uint64 // how many pods have begun
	volumes []VolumePods
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

// operation is the part of an operation's information that stays the same until its end.
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

// attributesOf returns the attributes that are known when an operation begins. The plugin is added at the end, because
// it may not be known yet.
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

// setError records an error in a span. It does nothing if err is nil.
func setError(span trace.Span, err error) {
	if err == nil {
		return
	}
	span.RecordError(err)
	span.SetStatus(codes.Error, err.Error())
}

// keep stores the span of an operation until it ends. Two executors of one program could begin operations with equal
// information in the same nanosecond: the first span then ends here.
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

// VolumePods is the part of a volumemanager.Manager that [Tracer.AddVolumePods] needs. It answers from memory.
type VolumePods interface {
	// PodsOfVolume returns the pods that use a volume.
	PodsOfVolume(volumeName v1.UniqueVolumeName) []volume.UniquePodName
}

// AddVolumePods names a manager that knows which pods use a volume. Without one, attachments are no children of pods.
func (t *Tracer) AddVolumePods(volumes VolumePods) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.volumes = append(slices.Clip(t.volumes), volumes)
}

// PodSpan is the span of a pod that waits for its volumes. [Tracer.BeginPod] makes it; the caller ends it.
type PodSpan struct {
	tracer *Tracer
	uid    types.UID
	span   trace.Span
	number uint64 // of the pods, in the order in which they began
}

// BeginPod begins the span of a pod that waits for its volumes. Call it before AddPod, and call [PodSpan.End] when the
// wait has ended: the tracer keeps the span until then. The span is a child of the span of ctx, if there is one; the
// returned context carries it. If it is called twice for a pod, operations are children of the second span.
func (t *Tracer) BeginPod(ctx context.Context, pod *v1.Pod) (context.Context, *PodSpan) {
	ctx, span := t.tracer.Start(ctx, podSpanName, trace.WithAttributes(
		podUIDKey.String(string(pod.UID)), podNameKey.String(pod.Name), podNamespaceKey.String(pod.Namespace)))
	p := &PodSpan{tracer: t, uid: pod.UID, span: span}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.begun++
	p.number = t.begun
	t.pods[pod.UID] = p
	return ctx, p
}

// End ends the span, with err as its error. Running operations stay its children; later ones are not. A second call
// does nothing.
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

// podOf returns the waiting pod whose span is the parent of an operation; nil if there is none.
func (t *Tracer) podOf(o operationexecutor.OperationInfo) *PodSpan {
	switch {
	case o.PodName != "":
		return t.pod(o.PodName)
	case o.Kind == operationexecutor.OpAttach || o.Kind == operationexecutor.OpVerifyControllerAttached:
		return t.firstPod(o.VolumeName)
	default:
		return nil // It does not make any pod ready.
	}
}

func (t *Tracer) pod(name volume.UniquePodName) *PodSpan {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.pods[types.UID(name)]
}

// firstPod returns the first of the waiting pods that use a volume; nil if there is none. An attachment is for all of them.
func (t *Tracer) firstPod(name v1.UniqueVolumeName) *PodSpan {
	var first *PodSpan
	for _, volumes := range t.allVolumePods() {
		for _, pod := range volumes.PodsOfVolume(name) {
			if p := t.pod(pod); p != nil && (first == nil || p.isBefore(first)) {
				first = p
			}
		}
	}
	return first
}

// allVolumePods returns the managers to query for pods; none while no pod waits.
func (t *Tracer) allVolumePods() []VolumePods {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.pods) == 0 {
		return nil
	}
	return t.volumes
}

// isBefore reports whether p's span, and not the other pod's, is the parent of an attachment for both: sampled spans
// first, then the one that began first.
func (p *PodSpan) isBefore(other *PodSpan) bool {
	if sampled := p.span.SpanContext().IsSampled(); sampled != other.span.SpanContext().IsSampled() {
		return sampled
	}
	return p.number < other.number
}
