package inspect

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/volumekit/volumekit/controller/attachdetach"
)

func writeClusterJSON(b *bytes.Buffer, a ClusterAnswer, _ clusterQuery) error {
	return json.NewEncoder(b).Encode(a)
}

// writeClusterText writes an answer for people.
func writeClusterText(b *bytes.Buffer, a ClusterAnswer, _ clusterQuery) error {
	if !a.Leading {
		b.WriteString("This process does not lead: it knows the leases alone.\n")
	}
	fmt.Fprintf(b, "%d claims wait; %d of %d attachments match, %d need attention, %d are taken by force; %d hung calls\n",
		a.Counts.Claims, a.Counts.Matching, a.Counts.Attachments, a.Counts.Attention, a.Counts.Forced, a.Counts.HungCalls)
	for _, c := range a.Claims {
		fmt.Fprintf(b, "\nCLAIM %s waits since %s: %s: %s%s\n", printable(c.Namespace+"/"+c.Name), stamp(c.Since), printable(c.Reason), printable(c.Message), cause(c.Error))
	}
	writeHung(b, a.HungCalls)
	writeTable(b, "NODE\tPHASE\tPLUGIN\tVOLUME", a.Attachments, func(one Attachment) (string, string) {
		row := fmt.Sprintf("%s\t%s\t%s\t%s", orDash(one.Node), orDash(one.Phase), orDash(one.Plugin), orDash(one.Volume))
		if one.Error == "" {
			return row, ""
		}
		return row, fmt.Sprintf("    error: %s\n    failed %d times in a row; next try: %s\n", printable(one.Error), one.Attempts, stamp(one.NextTry))
	})
	writeTable(b, "LEASE\tHOLDER\tRENEWED\tTRANSITIONS", a.Leases, func(l Lease) (string, string) {
		return fmt.Sprintf("%s\t%s\t%s\t%d", orDash(l.Name), orDash(l.Holder), stamp(l.Renewed), l.Transitions), ""
	})
	return nil
}

// clusterPage is the input of a cluster's template.
type clusterPage struct {
	ClusterAnswer
	// Node, Plugin and Phase are the filters.
	Node, Plugin, Phase string
	// Query is the query of this page; Before and After are links to the neighbouring pages, empty if there is none.
	Query, Before, After string
	// Stuck are the attachments that need attention, Others the rest.
	Stuck, Others []Attachment
	// Phases are all phases of an attachment.
	Phases []string
	// Now is when the controllers were read.
	Now time.Time
}

var attachmentPhases = []string{
	string(attachdetach.PhaseRequested), string(attachdetach.PhaseAttaching), string(attachdetach.PhaseAttached),
	string(attachdetach.PhaseInUse), string(attachdetach.PhaseDetaching), string(attachdetach.PhaseFenced), string(attachdetach.PhaseUncertain),
}

// writeClusterPage writes an answer as HTML.
func writeClusterPage(b *bytes.Buffer, a ClusterAnswer, q clusterQuery) error {
	p := clusterPage{
		ClusterAnswer: a, Node: text(q.node), Plugin: text(q.plugin), Phase: text(q.phase), Query: q.link(q.offset),
		Phases: attachmentPhases, Now: time.Now(),
	}
	stuck := slices.IndexFunc(a.Attachments, func(one Attachment) bool { return !one.needsAttention() })
	if stuck < 0 {
		stuck = len(a.Attachments)
	}
	p.Stuck, p.Others = a.Attachments[:stuck], a.Attachments[stuck:]
	if q.offset > 0 {
		p.Before = q.link(max(0, q.offset-q.limit))
	}
	if next := q.offset + len(a.Attachments); len(a.Attachments) > 0 && next < a.Counts.Matching {
		p.After = q.link(next)
	}
	return templates.ExecuteTemplate(b, "cluster.html", p)
}

// When formats a time, and its distance from now.
func (p clusterPage) When(t time.Time) string { return when(t, p.Now) }

// link returns the query of the page at an offset.
func (q clusterQuery) link(offset int) string {
	return linkOf(map[string]string{"node": q.node, "plugin": q.plugin, "phase": q.phase}, offset, q.limit)
}
