package inspect

import (
	"bytes"
	"embed"
	"fmt"
	"html/template"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager"
)

// The pages share their head. The script keeps a page up to date; without it the page is as complete.
//
//go:embed node.html cluster.html head.html live.js
var files embed.FS

var templates = template.Must(template.New("pages").Funcs(template.FuncMap{
	"stamp": stamp, "podName": podName, "count": count, "seconds": seconds, "bytes": bytesText, "orphan": orphanText,
}).ParseFS(files, "*.html"))

// serveScript sends the script of the pages.
func serveScript(w http.ResponseWriter, r *http.Request) {
	script, err := files.ReadFile("live.js")
	if err != nil {
		refuse(w, err)
		return
	}
	send(w, r, "text/javascript; charset=utf-8", script)
}

// page is what the template shows.
type page struct {
	NodeAnswer
	// Pod, Plugin and Phase are the filters.
	Pod, Plugin, Phase string
	// Query is the query of this page; Before and After are links to the neighbouring pages, empty if there is none.
	Query, Before, After string
	// WithStacks is a link to this page with the stacks of hung calls. WithUsage is a link to this page with the usage of the
	// volumes; it is empty on a page that has it.
	WithStacks, WithUsage string
	// Stuck are the volumes that need attention, Others those that do not.
	Stuck, Others []Volume
	// Phases are all phases of a volume.
	Phases []string
	// Now is when the status of the node was read.
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
		NodeAnswer: a, Pod: text(q.pod), Plugin: text(q.plugin), Phase: text(q.phase), Query: q.link(q.offset),
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
		p.Before = q.link(max(0, q.offset-q.limit))
	}
	if next := q.offset + len(a.Volumes); len(a.Volumes) > 0 && next < a.Counts.Matching {
		p.After = q.link(next)
	}
	if more := q; q.usage == withoutUsage {
		more.usage = withUsage
		p.WithUsage = more.link(q.offset)
	}
	q.stacks = withStacks
	p.WithStacks = q.link(q.offset)
	return templates.ExecuteTemplate(b, "node.html", p)
}

// When formats a time, and its distance from now.
func (p page) When(t time.Time) string { return when(t, p.Now) }

func when(t, now time.Time) string {
	if t.IsZero() {
		return stamp(t)
	}
	if d := now.Sub(t).Round(time.Second); d >= 0 {
		return fmt.Sprintf("%s (%v ago)", stamp(t), d)
	}
	return fmt.Sprintf("%s (in %v)", stamp(t), t.Sub(now).Round(time.Second))
}

// After formats how long t is after WantedSince; without WantedSince it formats t.
func (v Volume) After(t time.Time) string {
	if v.WantedSince.IsZero() || t.Before(v.WantedSince) {
		return stamp(t)
	}
	return "+" + seconds(t.Sub(v.WantedSince).Seconds())
}

// seconds formats a duration with a few digits.
func seconds(s float64) string {
	d := time.Duration(s * float64(time.Second))
	for _, unit := range []time.Duration{time.Second, time.Millisecond, time.Microsecond} {
		if d >= unit {
			return d.Round(unit / 100).String()
		}
	}
	return d.String()
}

// bytesText formats a number of bytes with two digits after the point.
func bytesText(n *uint64) string {
	if n == nil {
		return "unknown"
	}
	size, units := float64(*n), []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}
	for size >= 1024 && len(units) > 1 {
		size, units = size/1024, units[1:]
	}
	return strconv.FormatFloat(math.Round(size*100)/100, 'f', -1, 64) + " " + units[0]
}

// count formats a number of things.
func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return strconv.Itoa(n) + " " + what + "s"
}

// link returns the query of the page at an offset.
func (q query) link(offset int) string {
	return linkOf(map[string]string{
		"pod": q.pod, "plugin": q.plugin, "phase": q.phase, "stacks": string(q.stacks), "usage": string(q.usage),
	}, offset, q.limit)
}

// linkOf returns a query with the parameters that are not empty.
func linkOf(parameters map[string]string, offset, limit int) string {
	values := url.Values{}
	for name, value := range parameters {
		if value != "" {
			values.Set(name, text(value))
		}
	}
	values.Set("limit", strconv.Itoa(limit))
	values.Set("offset", strconv.Itoa(offset))
	return "?" + values.Encode()
}

func needsAttention(v Volume) bool {
	abnormal := func(c Condition) bool { return c.Status != string(volume.HealthNormal) }
	return v.Hung || v.Error != "" || slices.ContainsFunc(v.Conditions, abnormal)
}
