package mount

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

// defaultHelperDir is where helpers mount unless [Options].HelperDir says otherwise.
const defaultHelperDir = "/run/volumekit/mount"

// helperDirs are searched for mount.TYPE, in this order, as mount(8) does.
var helperDirs = []string{"/sbin", "/usr/sbin"}

// Helper is the program mount.TYPE of a filesystem that the kernel cannot mount by itself, because a process must talk to a
// server first, or must keep serving the mount. A Mounter runs it only for the types that [Options].Helpers names, as mount(8)
// would: with the source, a directory, and the options after -o. It is run by its path, never by a shell, with nothing of
// the environment but PATH and LC_ALL, in a process group of its own that is killed when the context ends. What it writes
// is in the error when it fails, at most 4 KiB, without secrets.
//
// The helper never sees the target. It mounts in a private directory of the Mounter. The Mounter sets the options of the
// mount itself and moves the finished mount to the target's descriptor. So a process that writes beside the target cannot
// redirect the mount, and no process sees an unfinished one. The Mounter verifies the result: a helper that reports success
// without a mount has failed, and the mount of a helper that reports failure is unmounted. A FUSE server that the helper
// starts must leave the process group (setsid, as those of libfuse do). It gets the path in the private directory, not the
// target.
type Helper struct {
	// Path is the absolute path of the program. Empty looks for mount.TYPE in /sbin and /usr/sbin when it is needed; for a
	// type with a dot, such as "fuse.sshfs", then for mount.fuse, which gets the type by -t.
	Path string
	// Credentials is the name of the option by which the program reads secrets from a file of lines key=value, such as
	// "credentials" of mount.cifs(8). Request.Sensitive is given to it in that way, as a file in memory that has no name.
	// Empty refuses Request.Sensitive with an error that matches ErrUnsupported, because all users can read the arguments of
	// a process.
	Credentials string
}

// programs returns the paths at which to look for the helper, in order.
func (h Helper) programs(fsType string) []string {
	if h.Path != "" {
		return []string{h.Path}
	}
	names := []string{"mount." + fsType}
	if base, _, ok := strings.Cut(fsType, "."); ok {
		names = append(names, "mount."+base)
	}
	var paths []string
	for _, name := range names {
		for _, dir := range helperDirs {
			paths = append(paths, path.Join(dir, name))
		}
	}
	return paths
}

// helperArgs are the arguments of the helper but for the secrets: built from checked parts, none of which can be taken for
// a flag.
func (p *Plan) helperArgs(program, dir, credentials string) ([]string, error) {
	source := p.Source
	if source == "" {
		source = "none"
	}
	options := slices.Clone(p.public)
	options = append(options, p.words()...)
	if credentials != "" {
		options = append(options, credentials)
	}
	for _, word := range append(options, source) {
		if strings.HasPrefix(word, "-") {
			return nil, fmt.Errorf("%q could be taken for a flag of the helper: %w", word, ErrInvalid)
		}
	}
	if hasControl(source) {
		return nil, fmt.Errorf("source %q holds a control character: %w", source, ErrInvalid)
	}
	args := []string{source, dir}
	if len(options) > 0 {
		args = append(args, "-o", strings.Join(options, ","))
	}
	if path.Base(program) != "mount."+p.FSType && strings.Contains(p.FSType, ".") {
		args = append(args, "-t", p.FSType)
	}
	return args, nil
}

// words are the options of the mount itself in the words of mount(8).
func (p *Plan) words() []string {
	words := slices.Clone(p.Set)
	for word, change := range mountOptions {
		if off, ok := strings.CutPrefix(change, "-"); ok && slices.Contains(p.Clear, off) {
			words = append(words, word)
		}
	}
	slices.Sort(words)
	return words
}

// helpers runs the programs that mount filesystems which the kernel cannot mount by itself.
type helpers struct {
	reader   *reader
	changer  changer
	programs map[string]Helper
	// dir holds the stages on which they mount.
	dir string
}
