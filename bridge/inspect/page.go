package inspect

import (
	"bytes"
	_ "embed"
	"html/template"
	"net/url"
	"slices"
	"strconv"

	"github.com/volumekit/volumekit/volume"
)

//go:embed page.html
var pageHTML string

var pageTemplate = template.Must(template.New("page").Funcs(template.FuncMap{
	"stamp": stamp, "podName": podName, "attention": needsAttention,
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
}

// writePage writes an answer as HTML.
func writePage(b *bytes.Buffer, a NodeAnswer, q query) error {
	p := page{NodeAnswer: a, Pod: text(q.pod), Plugin: text(q.plugin), Phase: text(q.phase), Query: q.link(q.offset, q.stacks)}
	if q.offset > 0 {
		p.Before = q.link(max(0, q.offset-q.limit), q.stacks)
	}
	if next := q.offset + len(a.Volumes); len(a.Volumes) > 0 && next < a.Counts.Matching {
		p.After = q.link(next, q.stacks)
	}
	p.WithStacks = q.link(q.offset, withStacks)
	return pageTemplate.Execute(b, p)
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
