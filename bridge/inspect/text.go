package inspect

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// writeText writes an answer for people: one line a volume, what is wrong with it below.
func writeText(b *bytes.Buffer, a NodeAnswer, _ query) error {
	fmt.Fprintf(b, "%d of %d volumes match, %d need attention; %d hung calls, %d orphans, %d damaged records, %d reports of lost data\n",
		a.Counts.Matching, a.Counts.Volumes, a.Counts.Attention, a.Counts.HungCalls, a.Counts.Orphans, a.Counts.DamagedRecords, a.Counts.LostData)
	writeVolumes(b, a)
	for _, h := range a.HungCalls {
		fmt.Fprintf(b, "\nHUNG since %s: %s of %s, %s of %s\n", stamp(h.Since), printable(h.Call), printable(h.Plugin), printable(h.Operation), printable(h.Volume))
		for line := range strings.Lines(h.Stack) {
			fmt.Fprintf(b, "    %s\n", printable(strings.TrimSpace(line)))
		}
	}
	for _, o := range a.Orphans {
		fmt.Fprintf(b, "\nORPHAN %s%s\n", printable(o.Path), cause(o.Error))
	}
	for _, d := range a.DamagedRecords {
		fmt.Fprintf(b, "\nDAMAGED RECORD %s%s\n", printable(d.Path), cause(d.Error))
	}
	for _, d := range a.LostData {
		fmt.Fprintf(b, "\nDATA MAY BE LOST of %s at %s%s\n", printable(d.Volume), stamp(d.At), cause(d.Error))
	}
	return nil
}

func writeVolumes(b *bytes.Buffer, a NodeAnswer) {
	if len(a.Volumes) == 0 {
		return
	}
	var notes []string // below the line of the volume of the same number
	var table bytes.Buffer
	w := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "POD\tNAME\tPHASE\tPLUGIN\tVOLUME")
	for _, v := range a.Volumes {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", podName(v.Pod), orDash(v.Name), orDash(v.Phase), orDash(v.Plugin), orDash(v.Volume))
		notes = append(notes, noteOf(v))
	}
	w.Flush()
	b.WriteByte('\n')
	line := -1 // that of the head
	for row := range strings.Lines(table.String()) {
		b.WriteString(row)
		if line >= 0 {
			b.WriteString(notes[line])
		}
		line++
	}
}

// noteOf returns the lines below a volume: since when, why not, when again, what is wrong.
func noteOf(v Volume) string {
	var b strings.Builder
	if !v.Since.IsZero() {
		fmt.Fprintf(&b, "    runs since %s\n", stamp(v.Since))
	}
	if v.Error != "" {
		fmt.Fprintf(&b, "    error: %s\n", printable(v.Error))
	}
	if v.Attempts > 0 || !v.NextTry.IsZero() {
		fmt.Fprintf(&b, "    failed %d times in a row; next try: %s\n", v.Attempts, stamp(v.NextTry))
	}
	for _, c := range v.Conditions {
		fmt.Fprintf(&b, "    %s since %s: %s\n", printable(c.Reason), stamp(c.Since), printable(c.Message))
	}
	return b.String()
}

func podName(p Pod) string {
	if p.Name == "" && p.Namespace == "" {
		return orDash(p.UID)
	}
	return printable(p.Namespace + "/" + p.Name)
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return printable(s)
}

func cause(err string) string {
	if err == "" {
		return ""
	}
	return ": " + printable(err)
}

func stamp(t time.Time) string {
	if t.IsZero() {
		return "no time is set"
	}
	return t.UTC().Format(time.RFC3339)
}

// printable escapes what does not print, as Go's strings have it: a name can neither begin a line nor steer a terminal.
func printable(s string) string {
	if !strings.ContainsFunc(s, func(r rune) bool { return !strconv.IsPrint(r) }) {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if strconv.IsPrint(r) {
			b.WriteRune(r)
			continue
		}
		b.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
	}
	return b.String()
}
