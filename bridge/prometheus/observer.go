package prometheus

import (
	prom "github.com/prometheus/client_golang/prometheus"

	"github.com/volumekit/volumekit/operationexecutor"
)

// operationBuckets are the upper bounds of durations in seconds, as those of storage_operation_duration_seconds in
// Kubernetes 1.36.
var operationBuckets = []float64{.1, .25, .5, 1, 2.5, 5, 10, 15, 25, 50, 120, 300, 600}

// stepBuckets start lower, because most steps are single system calls.
var stepBuckets = []float64{.0001, .001, .01, .1, 1, 10, 100}

// Observer counts operations and their steps. It is an [operationexecutor.Observer] for the options of a manager or a controller,
// and a collector to register. Several managers and controllers may share one. Make it with [NewObserver]. All methods may
// be called from several goroutines at once.
type Observer struct {
	durations *prom.HistogramVec
	steps     *prom.HistogramVec
	failures  *prom.CounterVec
	running   *prom.GaugeVec
}

var (
	_ operationexecutor.Observer = (*Observer)(nil)
	_ prom.Collector             = (*Observer)(nil)
)

// NewObserver returns an observer that has counted nothing.
func NewObserver() *Observer {
	return &Observer{
		durations: prom.NewHistogramVec(prom.HistogramOpts{
			Name:    "storage_operation_duration_seconds",
			Help:    "Duration of volume operations. The status is success or fail-unknown.",
			Buckets: operationBuckets,
		}, []string{"volume_plugin", "operation_name", "status", "migrated"}),
		steps: prom.NewHistogramVec(prom.HistogramOpts{
			Name:    "volumekit_operation_step_duration_seconds",
			Help:    "Duration of the steps of volume operations, such as one call of a plugin.",
			Buckets: stepBuckets,
		}, []string{"volume_plugin", "operation_name", "step"}),
		failures: prom.NewCounterVec(prom.CounterOpts{
			Name: "volumekit_operation_failures_total",
			Help: "Volume operations that failed, by the class of the failure: transient, uncertain or final.",
		}, []string{"volume_plugin", "operation_name", "class"}),
		running: prom.NewGaugeVec(prom.GaugeOpts{
			Name: "volumekit_operations_running",
			Help: "Volume operations that have begun and not ended.",
		}, []string{"operation_name"}),
	}
}

// Describe implements prom.Collector.
func (o *Observer) Describe(descriptions chan<- *prom.Desc) {
	o.durations.Describe(descriptions)
	o.steps.Describe(descriptions)
	o.failures.Describe(descriptions)
	o.running.Describe(descriptions)
}

// Collect implements prom.Collector.
func (o *Observer) Collect(metrics chan<- prom.Metric) {
	o.durations.Collect(metrics)
	o.steps.Collect(metrics)
	o.failures.Collect(metrics)
	o.running.Collect(metrics)
}

// OperationStarted implements operationexecutor.Observer. The plugin is not a label here, because it is not known yet.
func (o *Observer) OperationStarted(info operationexecutor.OperationInfo) {
	o.running.WithLabelValues(string(info.Kind)).Inc()
}

// OperationStepped implements operationexecutor.Observer.
func (o *Observer) OperationStepped(info operationexecutor.OperationInfo, step operationexecutor.Step) {
	o.steps.WithLabelValues(info.PluginName, string(info.Kind), step.Name).Observe(step.Duration.Seconds())
}

// OperationFinished implements operationexecutor.Observer.
func (o *Observer) OperationFinished(info operationexecutor.OperationInfo, result operationexecutor.Result) {
	status := "success"
	if result.Class != operationexecutor.Done {
		status = "fail-unknown"
		o.failures.WithLabelValues(info.PluginName, string(info.Kind), result.Class.String()).Inc()
	}
	o.durations.WithLabelValues(info.PluginName, string(info.Kind), status, "false").Observe(result.Duration.Seconds())
	o.running.WithLabelValues(string(info.Kind)).Dec()
}
