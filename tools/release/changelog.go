package main

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

const unreleased = "## [Unreleased]\n"

var errChangelog = errors.New("CHANGELOG.md cannot be released")

// released moves the entries below "Unreleased" of a changelog to a version with a date. It drops the text before the
// first heading, which is about the unreleased state.
func released(changelog, version string, day time.Time) (string, error) {
	before, rest, found := strings.Cut(changelog, unreleased)
	if !found {
		return "", fmt.Errorf("%w: it has no line %q", errChangelog, strings.TrimSpace(unreleased))
	}
	section, older, hasOlder := strings.Cut(rest, "\n## [")
	if hasOlder {
		older = "\n## [" + older
	}
	_, changes, found := strings.Cut(section, "\n### ")
	if !found {
		return "", fmt.Errorf("%w: nothing stands below %q: say what changed for users", errChangelog, strings.TrimSpace(unreleased))
	}
	return fmt.Sprintf("%s%s\n## [%s] - %s\n\n### %s%s", before, unreleased, strings.TrimPrefix(version, "v"), day.UTC().Format(time.DateOnly),
		changes, older), nil
}
