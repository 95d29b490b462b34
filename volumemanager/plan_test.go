package volumemanager

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

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
				assert.Equal(t, c.expected, describe(plan(view)), "%s:%d\n%s", file, c.line, strings.Join(c.input, "\n"))
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

func (v *volumeView) parse(word string) error {
	switch word {
	case "plan":
	case "attachable":
		v.attachable = true
	case "pending":
		v.pending = true
	case "adopted":
		v.adopted = true
	case "known":
		v.known = true
	case "attached":
		v.attached = attached
	case "attachment-uncertain":
		v.attached = attachUncertain
	case "staged":
		v.device = operationexecutor.DeviceGloballyMounted
	case "staging-uncertain":
		v.device = operationexecutor.DeviceMountUncertain
	default:
		return fmt.Errorf("unknown word %q", word)
	}
	return nil
}

func parsePod(words []string) (podView, error) {
	p := podView{name: volume.UniquePodName(words[0])}
	for _, word := range words[1:] {
		switch word {
		case "wanted":
			p.wanted = true
		case "held":
			p.held = true
		case "remount":
			p.remount = true
		case "pending":
			p.pending = true
		case "mounted":
			p.state = operationexecutor.VolumeMounted
		case "uncertain":
			p.state = operationexecutor.VolumeMountUncertain
		default:
			return p, fmt.Errorf("unknown word %q of pod %q", word, p.name)
		}
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
