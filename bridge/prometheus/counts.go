package prometheus

import (
	"strings"

	prom "github.com/prometheus/client_golang/prometheus"

	"github.com/volumekit/volumekit/operationexecutor"
)

// counts counts objects by their labels.
type counts[K comparable] map[K]int

// collect sends one gauge for each combination of labels.
func (c counts[K]) collect(metrics chan<- prom.Metric, description *prom.Desc, labels func(K) []string) {
	for key, n := range c {
		gauge(metrics, description, n, labels(key)...)
	}
}

func gauge(metrics chan<- prom.Metric, description *prom.Desc, value int, labels ...string) {
	metrics <- prom.MustNewConstMetric(description, prom.GaugeValue, float64(value), labels...)
}

func describe(descriptions chan<- *prom.Desc, all []*prom.Desc) {
	for _, d := range all {
		descriptions <- d
	}
}

// truth is a gauge that is 1 or 0.
func truth(metrics chan<- prom.Metric, description *prom.Desc, is bool, labels ...string) { //nolint:revive // It is the value.
	value := 0
	if is {
		value = 1
	}
	gauge(metrics, description, value, labels...)
}

// label returns text as a label: Prometheus refuses a whole scrape with a label that is not UTF-8.
func label(text string) string { return strings.ToValidUTF8(text, "\uFFFD") }

func oneLabel(value string) []string { return []string{value} }

// collectHung counts hung calls by plugin.
func collectHung(metrics chan<- prom.Metric, description *prom.Desc, calls []operationexecutor.HungCall) {
	byPlugin := counts[string]{}
	for _, call := range calls {
		byPlugin[call.Operation.PluginName]++
	}
	byPlugin.collect(metrics, description, oneLabel)
}
