package inspect

import (
	"bytes"
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// writeText writes an answer for people: one line for each volume, with its problems below; for one pod also the time
// lines.
func writeText(b *bytes.Buffer, a NodeAnswer, q query) error {
	if missing := missingOf(a.Running, a.PodsComplete); missing != "" {
		fmt.Fprintln(b, missing)
	}
	fmt.Fprintf(b, "%d of %d volumes match, %d need attention; %d hung calls, %d orphans, %d damaged records, %d reports of lost data\n",
		a.Counts.Matching, a.Counts.Volumes, a.Counts.Attention, a.Counts.HungCalls, a.Counts.Orphans, a.Counts.DamagedRecords, a.Counts.LostData)
	writeTable(b, "POD\tNAME\tPHASE\tPLUGIN\tVOLUME", a.Volumes, func(v Volume) (string, string) {
		row := fmt.Sprintf("%s\t%s\t%s\t%s\t%s", podName(v.Pod), orDash(v.Name), orDash(v.Phase), orDash(v.Plugin), orDash(v.Volume))
		if q.pod == "" {
			return row, noteOf(v)
		}
		return row, noteOf(v) + timeLineOf(v)
	})
	writeHung(b, a.HungCalls)
	for _, o := range a.Orphans {
		fmt.Fprintf(b, "\nORPHAN %s%s\n", printable(orphanText(o)), cause(o.Error))
	}
	for _, d := range a.DamagedRecords {
		fmt.Fprintf(b, "\nDAMAGED RECORD %s%s\n", printable(d.Path), cause(d.Error))
	}
	for _, d := range a.LostData {
		fmt.Fprintf(b, "\nDATA MAY BE LOST of %s%s at %s%s\n", printable(d.Volume), ofPod(d.PodUID), stamp(d.At), cause(d.Error))
	}
	return nil
}

func writeHung(b *bytes.Buffer, calls []HungCall) {
	for _, h := range calls {
		fmt.Fprintf(b, "\nHUNG since %s: %s of %s, %s of %s%s\n",
			stamp(h.Since), printable(h.Call), printable(h.Plugin), printable(h.Operation), printable(h.Volume), ofPod(h.PodUID))
		for line := range strings.Lines(h.Stack) {
			fmt.Fprintf(b, "    %s\n", printable(strings.TrimSpace(line)))
		}
	}
}

// writeTable writes a table, with notes below each line; nothing if there are no rows.
func writeTable[T any](b *bytes.Buffer, head string, rows []T, lineOf func(T) (row, notes string)) {
	if len(rows) == 0 {
		return
	}
	var notes []string // below the line of the row of the same number
	var table bytes.Buffer
	w := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, head)
	for _, r := range rows {
		row, note := lineOf(r)
		fmt.Fprintln(w, row)
		notes = append(notes, note)
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

// noteOf returns the lines below a volume: the running operation, the error, the next try, the conditions.
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
	if where := cmp.Or(v.Path, v.StagingPath); where != "" && needsAttention(v) {
		fmt.Fprintf(&b, "    at %s\n", printable(where))
	}
	for _, c := range v.Conditions {
		fmt.Fprintf(&b, "    %s since %s: %s\n", printable(c.Reason), stamp(c.Since), printable(c.Message))
	}
	return b.String()
}

// timeLineOf returns the time line of a volume: when it was requested and resolved, and its operations.
func timeLineOf(v Volume) string {
	var b strings.Builder
	if !v.WantedSince.IsZero() {
		fmt.Fprintf(&b, "    wanted %s\n", stamp(v.WantedSince))
	}
	if !v.ResolvedSince.IsZero() {
		fmt.Fprintf(&b, "    resolved %s\n", v.After(v.ResolvedSince))
	}
	for _, o := range v.Operations {
		took := "running"
		if !o.Running {
			took = "took " + seconds(o.Seconds)
		}
		fmt.Fprintf(&b, "    %s %s, %s%s\n", printable(o.Kind), v.After(o.Started), took, cause(o.Error))
		for _, s := range o.Steps {
			fmt.Fprintf(&b, "        %s %s%s\n", printable(s.Name), seconds(s.Seconds), cause(s.Error))
		}
	}
	if v.Usage != nil && v.Usage.Error == "" && !v.Usage.At.IsZero() {
		fmt.Fprintf(&b, "    %s of %s used at %s\n", bytesText(v.Usage.UsedBytes), bytesText(v.Usage.CapacityBytes), stamp(v.Usage.At))
	}
	return b.String()
}

// orphanText says what an orphan is, and where.
func orphanText(o Orphan) string {
	switch {
	case o.BackingFile != "":
		return o.Path + ", a loop device of " + o.BackingFile
	case o.Mounted:
		return o.Path + ", a mount of " + o.FSType
	}
	return o.Path + ", a directory"
}

func podName(p Pod) string {
	if p.Name == "" && p.Namespace == "" {
		return orDash(p.UID)
	}
	return printable(p.Namespace + "/" + p.Name)
}

// ofPod names the pod of something; empty without one.
func ofPod(uid string) string {
	if uid == "" {
		return ""
	}
	return " of pod " + printable(uid)
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

// printable escapes characters that do not print, as in Go's strings: a name can neither start a line nor control a
// terminal.
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
