package fake

import (
	"fmt"
	"strings"
)

// MountCall is one call of a [Mounter].
type MountCall struct {
	// Method is what was called.
	Method Method
	// Source and FSType are those of a Mount.
	Source, FSType string
	// Path is the absolute path that the call is about; empty for List.
	Path string
	// Options are those of a Mount, the user's first, without the sensitive ones.
	Options []string
	// Ended is true when the caller has its answer.
	Ended bool
	// Err is that answer.
	Err error
}

// String returns the call in one line that can be compared, such as `Mount /a at /b (bind,ro)` or
// `Unmount /b: not mounted`.
func (c MountCall) String() string {
	var b strings.Builder
	b.WriteString(string(c.Method))
	for _, word := range []string{c.FSType, c.Source} {
		if word != "" {
			b.WriteString(" " + word)
		}
	}
	if c.Method == MethodMount {
		b.WriteString(" at")
	}
	if c.Path != "" {
		b.WriteString(" " + c.Path)
	}
	if len(c.Options) > 0 {
		b.WriteString(" (" + strings.Join(c.Options, ",") + ")")
	}
	switch {
	case !c.Ended:
		b.WriteString(" (running)")
	case c.Err != nil:
		fmt.Fprintf(&b, ": %v", c.Err)
	}
	return b.String()
}

func (c *MountCall) method() Method { return c.Method }

func (c *MountCall) end(err error) { c.Ended, c.Err = true, err }
