package volumetest

import (
	"errors"
	"io/fs"
	"strings"
	"unicode"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/volumekit/volumekit/volume"
)

func metricsCases() []Case {
	return []Case{
		{
			Rule: "X1", Group: "metrics", Name: "what is measured",
			Sentence: "GetMetrics MUST return quantities that are known, not negative and not above the capacity, or an error that matches ErrUnsupported.",
			run:      metrics,
		},
		{
			Rule: "X2", Group: "metrics", Name: "what is there is counted",
			Sentence: "GetMetrics of a volume that holds a file MUST NOT report zero for the capacity, the used bytes, the inodes or the used inodes.",
			run:      metricsCount,
		},
		{
			Rule: "X3", Group: "metrics", Name: "the health of a volume that works",
			Sentence: "GetHealth of a volume that was set up and works MUST NOT report HealthDegraded or HealthAbnormal, and every condition MUST have a known status and a reason of one word.",
			run:      health,
		},
	}
}

func health(e *env) {
	s := e.ready(e.newSpec())
	p := s.forPod().setUp()
	p.write("file", "content")
	reporter, ok := p.mounter.(volume.HealthReporter)
	if ok {
		e.checkHealth(reporter)
	}
	p.tearDown()
	s.release()
	if !ok {
		e.t.Skip("the plugin reports no health: see volume.HealthReporter")
	}
}

// works says of each status of health whether a volume with it works.
var works = map[volume.HealthStatus]bool{
	volume.HealthUnknown: true, volume.HealthNormal: true, volume.HealthDegraded: false, volume.HealthAbnormal: false,
}

func (r *caseRun) checkHealth(reporter volume.HealthReporter) {
	r.t.Helper()
	conditions, err := reporter.GetHealth(r.ctx())
	if err != nil {
		r.broken("GetHealth: %v", err)
	}
	for _, c := range conditions {
		isFine, known := works[c.Status]
		switch {
		case !known:
			r.broken("the condition %q has the status %q, which is none of package volume", c.Reason, c.Status)
		case !isFine:
			r.broken("a volume that works has the status %s: %s: %s", c.Status, c.Reason, c.Message)
		case c.Reason == "" || strings.ContainsFunc(c.Reason, unicode.IsSpace):
			r.broken("%q is not a reason of one word", c.Reason)
		}
	}
}

// measured returns the metrics of a volume; nil where it cannot be measured.
func (p *podVolume) measured() *volume.Metrics {
	p.e.t.Helper()
	m, err := p.mounter.GetMetrics(p.e.ctx())
	switch {
	case errors.Is(err, volume.ErrUnsupported):
		p.e.t.Logf("the volume cannot be measured: %v", err)
	case !p.e.isKernel() && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission)):
		p.e.t.Logf("the plugin measures a path of this machine, and the volume is in a world in memory: %v", err)
	case err != nil:
		p.e.broken("GetMetrics: %v", err)
	case m == nil:
		p.e.broken("GetMetrics returned neither metrics nor an error")
	}
	return m
}

func metricsCount(e *env) {
	s := e.ready(e.newSpec())
	p := s.forPod().setUp()
	p.write("file", strings.Repeat("content\n", 128<<10))
	if m := p.measured(); m != nil {
		for _, row := range []struct {
			name  string
			value *resource.Quantity
		}{
			{"Capacity", m.Capacity}, {"Used", m.Used}, {"Inodes", m.Inodes}, {"InodesUsed", m.InodesUsed},
		} {
			if row.value != nil && row.value.IsZero() {
				e.broken("%s is zero", row.name)
			}
		}
	}
	p.tearDown()
	s.release()
}

func metrics(e *env) {
	s := e.ready(e.newSpec())
	p := s.forPod().setUp()
	if m := p.measured(); m != nil {
		e.checkMetrics(m)
	}
	p.tearDown()
	s.release()
}

func (r *caseRun) checkMetrics(m *volume.Metrics) {
	r.t.Helper()
	if m.Used == nil && m.Capacity == nil && m.Available == nil {
		r.broken("GetMetrics returned no quantity")
	}
	if m.Time.IsZero() {
		r.broken("GetMetrics does not say when it measured")
	}
	for _, row := range []struct {
		name       string
		value, top *resource.Quantity
	}{
		{"Used", m.Used, m.Capacity}, {"Available", m.Available, m.Capacity}, {"Capacity", m.Capacity, nil},
		{"InodesUsed", m.InodesUsed, m.Inodes}, {"InodesFree", m.InodesFree, m.Inodes}, {"Inodes", m.Inodes, nil},
	} {
		if row.value == nil {
			continue
		}
		if row.value.Sign() < 0 {
			r.broken("%s is %s", row.name, row.value)
		}
		if row.top != nil && row.value.Cmp(*row.top) > 0 {
			r.broken("%s is %s, above the whole %s", row.name, row.value, row.top)
		}
	}
}
