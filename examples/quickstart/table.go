package main

import (
	"bytes"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"text/tabwriter"

	v1 "k8s.io/api/core/v1"
)

// readyPod is a pod whose volumes are mounted.
type readyPod struct {
	pod     *v1.Pod
	name    string // namespace and name
	volumes []row
}

// row is one volume of one pod.
type row struct {
	// Pod is the pod's namespace and name.
	Pod string `json:"pod"`
	// Volume is the volume's name in the pod's spec.
	Volume string `json:"volume"`
	// Plugin is the name of its plugin.
	Plugin string `json:"plugin"`
	// Phase is where it stands, such as "mounted".
	Phase string `json:"phase"`
	// Path is the absolute path at which the pod's containers get it.
	Path string `json:"path"`
	// ReadOnly says that every container gets it read-only.
	ReadOnly bool `json:"readOnly"`
	// Size and Used are bytes; absent where the plugin cannot measure them.
	Size *int64 `json:"size,omitempty"`
	Used *int64 `json:"used,omitempty"`
	// ReadyMillis is how many milliseconds after the pod was added it was ready.
	ReadyMillis float64 `json:"readyMillis"`
}

// table returns the volumes of all pods as a table for people; the documents of -json have names and paths in full.
func table(pods []*readyPod, root string) string {
	var b bytes.Buffer
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "VOLUME\tPLUGIN\tPHASE\tPATH\tSIZE\tUSED\tREADY AFTER")
	for _, pod := range pods {
		for _, r := range pod.volumes {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%.1f ms\n", r.label(len(pods)), shortPlugin(r.Plugin), r.phase(), shorten(r.Path, root),
				binarySize(r.Size), binarySize(r.Used), r.ReadyMillis)
		}
	}
	_ = w.Flush() // into memory
	return strings.TrimSuffix(b.String(), "\n")
}

// label names the volume, and its pod where there are several.
func (r row) label(pods int) string {
	if pods == 1 {
		return r.Volume
	}
	return r.Pod + ":" + r.Volume
}

func (r row) phase() string {
	if r.ReadOnly {
		return r.Phase + ", read-only"
	}
	return r.Phase
}

// shorten writes a path for people: relative to root where it lies under it, and UIDs by their beginning.
func shorten(path, root string) string {
	if rest, ok := strings.CutPrefix(path, root+"/"); ok {
		path = "./" + rest
	}
	uid := regexp.MustCompile(`([0-9a-f]{8})-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)
	return uid.ReplaceAllString(path, "$1…")
}

// binarySize writes a number of bytes in binary units with at most one decimal, such as 63.2Mi; "-" when it is unknown.
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
