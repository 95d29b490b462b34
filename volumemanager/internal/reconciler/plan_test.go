package reconciler

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/cache"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

// TestPlan runs the cases under testdata/plan. A case is a command, the volume in lines of words, a line of dashes and
// the actions that are expected, one to a line, or "nothing". A blank line ends it, "#" begins a comment.
func TestPlan(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("testdata", "plan", "*.txt"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			for _, c := range planCases(t, file) {
				view, err := parseView(c.input)
				require.NoError(t, err, "%s:%d", file, c.line)
				assert.Equal(t, c.expected, describe(view.plan(nil)), "%s:%d\n%s", file, c.line, strings.Join(c.input, "\n"))
			}
		})
	}
}

type planCase struct {
	line            int
	input, expected []string
}

func planCases(t *testing.T, file string) []planCase {
	t.Helper()
	content, err := os.ReadFile(file)
	require.NoError(t, err)
	var cases []planCase
	var current *planCase
	expecting := false
	for i, line := range strings.Split(string(content), "\n") {
		switch {
		case strings.HasPrefix(line, "#"):
		case line == "":
			current, expecting = nil, false
		case line == "----":
			expecting = true
		case expecting:
			current.expected = append(current.expected, line)
		default:
			if current == nil {
				cases = append(cases, planCase{line: i + 1})
				current = &cases[len(cases)-1]
			}
			current.input = append(current.input, line)
		}
	}
	require.NotEmpty(t, cases, file)
	return cases
}

func parseView(lines []string) (volumeView, error) {
	var v volumeView
	for _, line := range lines {
		words := strings.Fields(line)
		if words[0] == "pod" {
			p, err := parsePod(words[1:])
			if err != nil {
				return v, err
			}
			v.pods = append(v.pods, p)
			continue
		}
		for _, word := range words {
			if err := v.parse(word); err != nil {
				return v, err
			}
		}
	}
	return v, nil
}

// volumeWords are what a case may say of a volume.
var volumeWords = map[string]func(v *volumeView){
	"plan":                 func(*volumeView) {},
	"attachable":           func(v *volumeView) { v.attachable = true },
	"by-controller":        func(v *volumeView) { v.byController = true },
	"pending":              func(v *volumeView) { v.pending = true },
	"adopted":              func(v *volumeView) { v.adopted = true },
	"known":                func(v *volumeView) { v.known = true },
	"attached":             func(v *volumeView) { v.attached = cache.Attached },
	"attachment-uncertain": func(v *volumeView) { v.attached = cache.AttachUncertain },
	"staged":               func(v *volumeView) { v.device = operationexecutor.DeviceGloballyMounted },
	"staging-uncertain":    func(v *volumeView) { v.device = operationexecutor.DeviceMountUncertain },
}

func (v *volumeView) parse(word string) error {
	say := volumeWords[word]
	if say == nil {
		return fmt.Errorf("unknown word %q", word)
	}
	say(v)
	return nil
}

// podWords are what a case may say of a pod.
var podWords = map[string]func(p *podView){
	"wanted":    func(p *podView) { p.wanted = true },
	"held":      func(p *podView) { p.mayUse = true },
	"waits":     func(p *podView) { p.wanted, p.waits = true, true },
	"stale":     func(p *podView) { p.stale = true },
	"remount":   func(p *podView) { p.remount = true },
	"grow":      func(p *podView) { p.expand = true },
	"pending":   func(p *podView) { p.pending = true },
	"mounted":   func(p *podView) { p.state = operationexecutor.VolumeMounted },
	"uncertain": func(p *podView) { p.state = operationexecutor.VolumeMountUncertain },
}

func parsePod(words []string) (podView, error) {
	p := podView{name: volume.UniquePodName(words[0])}
	for _, word := range words[1:] {
		say := podWords[word]
		if say == nil {
			return p, fmt.Errorf("unknown word %q of pod %q", word, p.name)
		}
		say(&p)
	}
	return p, nil
}

func describe(actions []action) []string {
	if len(actions) == 0 {
		return []string{"nothing"}
	}
	var lines []string
	for _, a := range actions {
		lines = append(lines, strings.TrimSpace(fmt.Sprintf("%s %s", a.verb, a.pod)))
	}
	return lines
}
