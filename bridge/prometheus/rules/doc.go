// Package rules has alert rules and a dashboard for the metrics of bridge/prometheus. alerts.yml is for Prometheus, dashboard.json for
// Grafana. The package has no code. Its tests evaluate each expression on the output of the real collectors. It is a module of
// its own, because the tests need Prometheus.
package rules
