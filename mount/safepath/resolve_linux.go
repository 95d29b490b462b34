package safepath

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/abandonable"
)

// maxLinks is how many links a name may lead through, as in the kernel.
const maxLinks = 40

// resolve replaces the relative links in name by what they hold, and returns a name without links. A caller that opens that must
// not follow links either: it was free of them only for a moment. What is missing has no links in it. A link to what is missing
// is refused.
func (t *tree) resolve(ctx context.Context, name string) (string, error) {
	var done []string
	todo := strings.Split(name, "/")
	own := len(todo) // so many of the last elements in todo are of the name itself, and of no link
	isMissing := false
	for links := 0; len(todo) > 0; {
		element := todo[0]
		todo = todo[1:]
		ofALink := len(todo) >= own
		own = min(own, len(todo))
		switch element {
		case "", ".": // in what a link holds
			continue
		case "..": // likewise; what is above has no links
			if len(done) == 0 {
				return "", fmt.Errorf("a link leads out of it: %w", ErrEscapes)
			}
			done = done[:len(done)-1]
			continue
		}
		done = append(done, element)
		if isMissing {
			continue
		}
		content, err := t.readLink(ctx, strings.Join(done, "/"))
		if ofALink && errors.Is(err, unix.ENOENT) {
			return "", fmt.Errorf("%w: %w", ErrDangling, err)
		}
		if isMissing = errors.Is(err, unix.ENOENT); isMissing || err == nil && content == "" {
			continue
		}
		if err != nil {
			return "", err
		}
		if links++; links > maxLinks || strings.HasPrefix(content, "/") {
			return "", fmt.Errorf("an absolute link, or more than %d of them: %w", maxLinks, ErrEscapes)
		}
		done, todo = done[:len(done)-1], append(strings.Split(content, "/"), todo...)
	}
	resolved := strings.Join(done, "/")
	return resolved, CheckName(resolved)
}

// readLink returns what the link at name holds; "" when it is none.
func (t *tree) readLink(ctx context.Context, name string) (string, error) {
	dir, base := splitName(name)
	at, err := t.openPath(ctx, t.fd, dir, how{directory: true})
	if err != nil {
		return "", err
	}
	defer closeFD(at)
	if err := abandonable.Begin(ctx, "readlinkat"); err != nil {
		return "", err
	}
	buffer := make([]byte, maxName+1)
	n, err := retry(func() (int, error) { return unix.Readlinkat(at, base, buffer) })
	if errors.Is(err, unix.EINVAL) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	return string(buffer[:n]), nil
}
