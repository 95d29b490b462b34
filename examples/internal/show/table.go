package show

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
)

// Row is one volume of one pod.
type Row struct {
	// Pod is the pod's namespace and name.
	Pod string `json:"pod"`
	// Volume is the volume's name in the pod's spec.
	Volume string `json:"volume"`
	// Plugin is the name of its plugin.
	Plugin string `json:"plugin"`
	// Phase is its phase, such as "mounted".
	Phase string `json:"phase"`
	// Path is the absolute path from which the pod's containers get it.
	Path string `json:"path"`
	// ReadOnly says that every container gets it read-only.
	ReadOnly bool `json:"readOnly"`
	// Size and Used are in bytes; absent if the plugin cannot measure them.
	Size *int64 `json:"size,omitempty"`
	Used *int64 `json:"used,omitempty"`
	// ReadyMillis is the time from the pod's addition until the volume was ready, in milliseconds.
	ReadyMillis float64 `json:"readyMillis"`
}

// Table returns volumes as a table for people; the documents of -json have names and paths in full.
func Table(rows []Row, root string) string {
	var b bytes.Buffer
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "VOLUME\tPLUGIN\tPHASE\tPATH\tSIZE\tUSED\tREADY AFTER")
	for _, r := range rows {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%.1f ms\n", r.label(rows), shortPlugin(r.Plugin), r.phase(), shorten(r.Path, root),
			binarySize(r.Size), binarySize(r.Used), r.ReadyMillis)
	}
	_ = w.Flush() // into memory
	return strings.TrimSuffix(b.String(), "\n")
}

// label names the volume, and its pod if the table has several.
func (r Row) label(rows []Row) string {
	if !slices.ContainsFunc(rows, func(other Row) bool { return other.Pod != r.Pod }) {
		return r.Volume
	}
	return r.Pod + ":" + r.Volume
}

func (r Row) phase() string {
	if r.ReadOnly {
		return r.Phase + ", read-only"
	}
	return r.Phase
}

// shorten shortens a path for people: it is relative to root if it is below root, and has only the beginnings of UIDs.
func shorten(path, root string) string {
	if rest, ok := strings.CutPrefix(path, root+"/"); ok {
		path = "./" + rest
	}
	uid := regexp.MustCompile(`([0-9a-f]{8})-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)
	return uid.ReplaceAllString(path, "$1…")
}

// binarySize formats a number of bytes in binary units with at most one decimal, such as 63.2Mi; "-" if it is unknown.
func binarySize(bytes *int64) string {
	if bytes == nil {
		return "-"
	}
	value, unit := float64(*bytes), 0
	units := [...]string{"", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"}
	for value >= 1024 && unit < len(units)-1 {
		value, unit = value/1024, unit+1
	}
	return strings.TrimSuffix(strconv.FormatFloat(value, 'f', 1, 64), ".0") + units[unit]
}
