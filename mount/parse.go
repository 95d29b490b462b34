package mount

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// parser reads a mount table in the format of /proc/self/mountinfo (proc_pid_mountinfo(5)). The strings that it returns are parts
// of the content, except for names with escapes. All words are in one array, and neighbours with equal options share them.
type parser struct {
	words   []string // options and optional fields of all lines
	options memo
	super   memo
}

// memo is the last text that was split, and its parts.
type memo struct {
	text  string
	parts []string
}

// parseTable reads a whole mount table.
func parseTable(content string) ([]MountPoint, error) {
	table := make([]MountPoint, 0, strings.Count(content, "\n")+1)
	return parseInto(table, content)
}

// parseInto appends the mounts of a text to table.
func parseInto(table []MountPoint, content string) ([]MountPoint, error) {
	p := parser{words: make([]string, 0, 2*(cap(table)-len(table)))}
	for content != "" {
		line, rest, _ := strings.Cut(content, "\n")
		content = rest
		if line == "" {
			continue
		}
		table = append(table, MountPoint{})
		if err := p.line(line, &table[len(table)-1]); err != nil {
			return nil, fmt.Errorf("mount table, line %q: %w", line, err)
		}
	}
	return table, nil
}

// line reads one line: id, parent, major:minor, root, path, options, any number of optional fields, a dash, then
// filesystem, source and superblock options. The source may be missing or empty, so fields are split at single blanks.
func (p *parser) line(line string, m *MountPoint) (err error) {
	var fields [6]string
	for i := range fields {
		var ok bool
		if fields[i], line, ok = strings.Cut(line, " "); !ok {
			return fmt.Errorf("%d fields: %w", i+1, ErrInvalid)
		}
	}
	if m.Propagation, line, err = p.optional(line); err != nil {
		return err
	}
	m.Root, m.Path = unescape(fields[3]), unescape(fields[4])
	m.Options = p.split(fields[5], &p.options)
	p.filesystem(line, m)
	return m.setNumbers(fields[0], fields[1], fields[2])
}

// optional reads the optional fields and the dash, and returns what follows.
func (p *parser) optional(line string) (fields []string, rest string, err error) {
	start := len(p.words)
	for {
		field, rest, more := strings.Cut(line, " ")
		switch {
		case field == "-" && more:
			return p.since(start), rest, nil
		case !more:
			return nil, "", fmt.Errorf("no filesystem: %w", ErrInvalid)
		}
		p.words = append(p.words, field)
		line = rest
	}
}

func (p *parser) filesystem(line string, m *MountPoint) {
	fsType, line, _ := strings.Cut(line, " ")
	source, line, _ := strings.Cut(line, " ")
	super, _, _ := strings.Cut(line, " ")
	m.FSType, m.Source = unescape(fsType), tableSource(unescape(source))
	m.SuperOptions = p.split(super, &p.super)
}

// split splits options. It returns the parts of the last line if that had the same text.
func (p *parser) split(text string, last *memo) []string {
	if text == "" {
		return nil
	}
	if text == last.text {
		return last.parts
	}
	start := len(p.words)
	p.addOptions(text)
	*last = memo{text, p.since(start)}
	return last.parts
}

// addOptions adds the words of options that are joined by commas.
func (p *parser) addOptions(text string) {
	for more := true; more; {
		var option string
		option, text, more = cutOption(text)
		p.words = append(p.words, unescape(option))
	}
}

// cutOption is strings.Cut at the first comma between two options. The kernel quotes an SELinux label that holds commas, and
// escapes a quote in it. It quotes nothing else.
func cutOption(text string) (option, rest string, more bool) {
	option, rest, more = strings.Cut(text, ",")
	if !more || !opensLabel(option) {
		return option, rest, more
	}
	label, after, closed := strings.Cut(rest, `"`)
	if !closed || after != "" && after[0] != ',' {
		return option, rest, more
	}
	end := len(option) + 1 + len(label) + 1
	return text[:end], strings.TrimPrefix(after, ","), after != ""
}

// opensLabel reports whether the option is the beginning of a label in quotes.
func opensLabel(option string) bool {
	key, label, _ := strings.Cut(option, "=")
	return strings.HasPrefix(label, `"`) && strings.Count(label, `"`) == 1 && slices.Contains(contextOptions, key)
}

// since returns the words that were added. An append to the result copies it.
func (p *parser) since(start int) []string {
	if start == len(p.words) {
		return nil
	}
	return p.words[start:len(p.words):len(p.words)]
}

func (m *MountPoint) setNumbers(id, parent, device string) (err error) {
	if m.ID, err = strconv.ParseUint(id, 10, 64); err != nil {
		return fmt.Errorf("id: %w: %w", ErrInvalid, err)
	}
	if m.ParentID, err = strconv.ParseUint(parent, 10, 64); err != nil {
		return fmt.Errorf("parent: %w: %w", ErrInvalid, err)
	}
	major, minor, _ := strings.Cut(device, ":")
	if m.Major, err = parseUint32(major); err != nil {
		return fmt.Errorf("device: %w: %w", ErrInvalid, err)
	}
	if m.Minor, err = parseUint32(minor); err != nil {
		return fmt.Errorf("device: %w: %w", ErrInvalid, err)
	}
	return nil
}

func parseUint32(s string) (uint32, error) {
	n, err := strconv.ParseUint(s, 10, 32)
	return uint32(n), err
}

// tableSource converts a source of the mount table, which writes "none" if there is none.
func tableSource(source string) string {
	if source == "none" {
		return ""
	}
	return source
}

// unescape decodes what the kernel writes for blank, tab, newline, backslash and the like: a backslash and three octal
// digits.
func unescape(s string) string {
	at := strings.IndexByte(s, '\\')
	if at < 0 {
		return s
	}
	var b strings.Builder
	b.Grow(len(s))
	b.WriteString(s[:at])
	for i := at; i < len(s); i++ {
		if c, ok := octal(s[i:]); ok {
			b.WriteByte(c)
			i += 3
			continue
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// octal decodes the escape that s begins with.
func octal(s string) (byte, bool) {
	if len(s) < 4 || s[0] != '\\' {
		return 0, false
	}
	n, err := strconv.ParseUint(s[1:4], 8, 8)
	return byte(n), err == nil
}
