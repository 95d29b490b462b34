package inspect

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager"
)

//go:embed page.html
var pageHTML string

var pageTemplate = template.Must(template.New("page").Funcs(template.FuncMap{
	"stamp": stamp, "podName": podName, "count": count,
}).Parse(pageHTML))

// page is what the template shows.
type page struct {
	NodeAnswer
	// Pod, Plugin and Phase are the filters.
	Pod, Plugin, Phase string
	// Query is that of this page; Before and After are links to the pages beside it, empty where there is none.
	Query, Before, After string
	// WithStacks is a link to this page with the stacks of hung calls.
	WithStacks string
	// Stuck are the volumes that need attention, Others those that do not.
	Stuck, Others []Volume
	// Phases are those that a volume can be in.
	Phases []string
	// Now is when the node was asked.
	Now time.Time
}

var phases = []string{
	string(volumemanager.PhaseUnresolved), string(volumemanager.PhaseWaiting), string(volumemanager.PhaseAttaching),
	string(volumemanager.PhaseMounting), string(volumemanager.PhaseMounted), string(volumemanager.PhaseUncertain),
	string(volumemanager.PhaseUnmounting), string(volumemanager.PhaseUnstaging), string(volumemanager.PhaseDetaching),
	string(volumemanager.PhaseReleased),
}

// writePage writes an answer as HTML.
func writePage(b *bytes.Buffer, a NodeAnswer, q query) error {
	p := page{
		NodeAnswer: a, Pod: text(q.pod), Plugin: text(q.plugin), Phase: text(q.phase), Query: q.link(q.offset, q.stacks),
		Phases: phases, Now: time.Now(),
	}
	if p.Phase != "" && !slices.Contains(phases, p.Phase) {
		p.Phases = append(slices.Clip(phases), p.Phase)
	}
	for _, v := range a.Volumes {
		if needsAttention(v) {
			p.Stuck = append(p.Stuck, v)
		} else {
			p.Others = append(p.Others, v)
		}
	}
	if q.offset > 0 {
		p.Before = q.link(max(0, q.offset-q.limit), q.stacks)
	}
	if next := q.offset + len(a.Volumes); len(a.Volumes) > 0 && next < a.Counts.Matching {
		p.After = q.link(next, q.stacks)
	}
	p.WithStacks = q.link(q.offset, withStacks)
	return pageTemplate.Execute(b, p)
}

// When says when something was, or will be, and how long that is from now.
func (p page) When(t time.Time) string {
	if t.IsZero() {
		return stamp(t)
	}
	if d := p.Now.Sub(t).Round(time.Second); d >= 0 {
		return fmt.Sprintf("%s (%v ago)", stamp(t), d)
	}
	return fmt.Sprintf("%s (in %v)", stamp(t), t.Sub(p.Now).Round(time.Second))
}

// count says how many there are of what.
func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return strconv.Itoa(n) + " " + what + "s"
}

// link returns the query of the page at an offset.
func (q query) link(offset int, s stacks) string {
	values := url.Values{}
	for name, value := range map[string]string{"pod": q.pod, "plugin": q.plugin, "phase": q.phase, "stacks": string(s)} {
		if value != "" {
			values.Set(name, text(value))
		}
	}
	values.Set("limit", strconv.Itoa(q.limit))
	values.Set("offset", strconv.Itoa(offset))
	return "?" + values.Encode()
}

func needsAttention(v Volume) bool {
	abnormal := func(c Condition) bool { return c.Status != string(volume.HealthNormal) }
	return v.Hung || v.Error != "" || slices.ContainsFunc(v.Conditions, abnormal)
}
