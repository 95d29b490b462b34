package ownership

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"syscall"
)

// Report says what was done. Of work that was abandoned it says what was done until then.
type Report struct {
	// Counts is what was seen and changed.
	Counts
	// Skipped is true when nothing beneath the root was looked at.
	Skipped bool
	// Reason is why it was skipped, or why it was not. It is empty when the root could not be looked at.
	Reason Reason
	// Complete is true when everything was found right or made so, and the root last of all. It is false when the tree was
	// skipped.
	Complete bool
}

// Reason is why a tree was skipped or not, in words that may be logged.
type Reason string

// The reasons. The first two skip the tree.
const (
	noGroup          Reason = "no group was asked for"
	rootMatches      Reason = "the root has the group and the mode already"
	policyAlways     Reason = "the policy is to look at everything each time"
	rootNotDirectory Reason = "the root is not a directory"
	rootGroup        Reason = "the root has another group"
	rootMode         Reason = "the root lacks mode bits"
)

// Counts counts entries of the tree, the root included.
type Counts struct {
	// Visited is how many were looked at.
	Visited int64
	// GroupChanged is how many were given the group, symbolic links included.
	GroupChanged int64
	// ModeChanged is how many were given mode bits.
	ModeChanged int64
	// SetIDCleared is how many files lost setuid or setgid because their group changed.
	SetIDCleared int64
	// Links is how many of those looked at are symbolic links.
	Links int64
	// Vanished is how many were gone before they could be looked at or changed.
	Vanished int64
	// Mounts is how many were left alone, with all that is beneath them, because something is mounted there.
	Mounts int64
	// Failed is how many could not be looked at, read or changed.
	Failed int64
}

// counter counts what one worker does. Others may read it meanwhile.
type counter struct {
	visited, groupChanged, modeChanged, setIDCleared, links atomic.Int64

	_ [64]byte // so that two workers do not write to one cache line
}

func (c *counter) addTo(sum *Counts) {
	sum.Visited += c.visited.Load()
	sum.GroupChanged += c.groupChanged.Load()
	sum.ModeChanged += c.modeChanged.Load()
	sum.SetIDCleared += c.setIDCleared.Load()
	sum.Links += c.links.Load()
}

// FailedError says what in a tree could not be looked at, read or changed. errors.Is finds the errno of every kind of
// failure in it.
type FailedError struct {
	// Dir is the root of the tree.
	Dir string
	// Total is how many failures there were.
	Total int64
	// Failures holds the first of them, and the first of each errno: each a *fs.PathError.
	Failures []error
}

// Error names the first failures and the number of all.
func (e *FailedError) Error() string {
	var text strings.Builder
	fmt.Fprintf(&text, "ownership of %q: %d failed: ", e.Dir, e.Total)
	for i, failure := range e.Failures {
		if i == maxShown {
			break
		}
		text.WriteString(failure.Error())
		text.WriteString("; ")
	}
	if more := e.Total - int64(min(len(e.Failures), maxShown)); more > 0 {
		fmt.Fprintf(&text, "and %d more; ", more)
	}
	text.WriteString("mend the cause and try again")
	return text.String()
}

// Unwrap returns the failures that were kept.
func (e *FailedError) Unwrap() []error { return e.Failures }

const (
	defaultMaxFailures = 16
	// maxShown is how many failures an error names.
	maxShown = 4
)

// failures keeps the first of many errors, and the first of each errno.
type failures struct {
	most  int
	total int64
	kept  []error
}

func (f *failures) add(err error) {
	f.total++
	if len(f.kept) < f.most || !f.knows(err) {
		f.kept = append(f.kept, err)
	}
}

// knows reports whether an error of the same errno was kept. What has no errno is of one kind.
func (f *failures) knows(err error) bool {
	want := errnoOf(err)
	for _, kept := range f.kept {
		if errnoOf(kept) == want {
			return true
		}
	}
	return false
}

func errnoOf(err error) (errno syscall.Errno) {
	_ = errors.As(err, &errno) // 0 when there is none
	return errno
}

// err returns all of it as one error.
func (f *failures) err(dir string) error {
	if f.total == 0 {
		return nil
	}
	return &FailedError{Dir: dir, Total: f.total, Failures: append([]error(nil), f.kept...)}
}
