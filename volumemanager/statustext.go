package volumemanager

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// String returns the status as a table for people, one line for each volume; below it, indented, is why a volume is not where it
// should be, and what else is wrong with it. Damaged records, orphans and lost data follow. A line before the table says if the
// manager does not run, or does not know all pods. Its form may change: programs use the fields, or JSON.
func (s NodeStatus) String() string {
	rows := volumeTable(s.Volumes)
	lines := append(s.missing(), rows[0])
	for i, v := range s.Volumes {
		lines = append(lines, rows[i+1])
		for _, reason := range v.reasons() {
			lines = append(lines, "  "+oneLine(reason))
		}
	}
	for _, d := range s.Damaged {
		lines = append(lines, withReason("damaged record "+d.Path, d.Err))
	}
	for _, o := range s.Orphans {
		lines = append(lines, withReason(o.text(), o.Err))
	}
	for _, l := range s.LostData {
		lines = append(lines, withReason("data of volume "+string(l.Volume)+" may be lost", l.Err))
	}
	return strings.Join(lines, "\n")
}

// missing says what the agent has not done yet, or what it has ended.
func (s NodeStatus) missing() []string {
	switch {
	case !s.Running:
		return []string{"not running: Run was not called, has not read the records yet, or has ended"}
	case !s.PodsComplete:
		return []string{"pods not complete: call PodsComplete once every pod of the node has been added; until then what an earlier manager left stays"}
	}
	return nil
}

// volumeTable returns a head and one line for each volume.
func volumeTable(volumes []VolumeStatus) []string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "POD\tVOLUME\tPLUGIN\tPHASE\tPATH")
	for _, v := range volumes {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", podText(v.PodName), v.name(), orDash(v.Plugin), v.phaseText(), orDash(cmp.Or(v.Path, v.DeviceMountPath)))
	}
	w.Flush()
	return strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
}

// text says where the orphan is, and what it is.
func (o Orphan) text() string {
	switch {
	case o.BackingFile != "":
		return fmt.Sprintf("orphan %s, a loop device of %s", o.Path, o.BackingFile)
	case o.Mounted:
		return fmt.Sprintf("orphan %s, a mount of %s", o.Path, o.FSType)
	}
	return fmt.Sprintf("orphan %s, a directory", o.Path)
}

// withReason returns what is there, and why.
func withReason(what string, why error) string {
	if why == nil {
		return what
	}
	return what + ": " + oneLine(why.Error())
}

// String returns the volume, its phase, and why it is not where it should be, in one line.
func (s VolumeStatus) String() string {
	text := fmt.Sprintf("volume %s of pod %s is %s", s.name(), podText(s.PodName), s.phaseText())
	if s.PodName == (types.NamespacedName{}) {
		text = fmt.Sprintf("volume %s is %s", s.name(), s.phaseText())
	}
	for _, reason := range s.reasons() {
		text += ": " + oneLine(reason)
	}
	return text
}

// name is the name in the pod's spec, or else the unique name.
func (s VolumeStatus) name() string { return orDash(cmp.Or(s.OuterName, string(s.Volume))) }

func (s VolumeStatus) phaseText() string {
	if s.ReadOnly {
		return string(s.Phase) + ", read-only"
	}
	return string(s.Phase)
}

// reasons say what keeps the volume from where it should be, and what is wrong with it.
func (s VolumeStatus) reasons() []string {
	var reasons []string
	if s.Err != nil {
		reason := s.Err.Error()
		if s.Attempts > 1 {
			reason += fmt.Sprintf(", failed %d times", s.Attempts)
		}
		if !s.NextTry.IsZero() {
			reason += ", next try at " + s.NextTry.Format(time.RFC3339)
		}
		reasons = append(reasons, reason)
	}
	for _, c := range s.Conditions {
		// A device and the pod's volume on it may have the same condition.
		if reason := c.Reason + ": " + cmp.Or(c.Message, textOf(c.Err)); !slices.Contains(reasons, reason) {
			reasons = append(reasons, reason)
		}
	}
	return reasons
}

func podText(name types.NamespacedName) string {
	if name == (types.NamespacedName{}) {
		return "-"
	}
	return name.String()
}

func orDash(text string) string { return cmp.Or(text, "-") }

// oneLine makes one line of the text of several errors, without what would end a cell of a table.
func oneLine(text string) string { return strings.NewReplacer("\n", "; ", "\t", " ").Replace(text) }
