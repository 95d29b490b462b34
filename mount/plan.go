package mount

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

// Plan is what a [Request] means: checked, and with its options sorted by who acts on them. A Mounter makes one from
// every request; other implementations of [Interface] use it to refuse and to understand the same.
type Plan struct {
	// Source is the request's.
	Source string
	// Target is the request's, cleaned.
	Target string
	// FSType is the request's; empty for a bind.
	FSType string
	// Bind says that this is a bind; with Remount, that only the mount changes and not its filesystem.
	Bind bool
	// Recursive says that a bind takes the mounts below its source along.
	Recursive bool
	// Below says that Set and Clear are for the mounts below, too: of a recursive bind always.
	Below bool
	// Remount says that the mount at Target changes.
	Remount bool
	// Set are the mount's own options that are turned on, in the spelling of the mount table: "ro", "nosuid", "nodev",
	// "noexec", "noatime", "relatime", "strictatime", "nodiratime", "nosymfollow". The last word in the request wins, also
	// among the three about access times.
	Set []string
	// Clear are those that are turned off, in the same spelling: a request's "rw" is "ro" here.
	Clear []string
	// Propagation is "private", "shared", "slave" or "unbindable", with a leading "r" when it is for the mounts below too.
	// It is "private" when the request says nothing and is no remount.
	Propagation string
	// Data are the options for the filesystem, sensitive ones included. They are never to be joined or printed; Plan itself
	// prints their number.
	Data []string
	// SELinuxContext is the request's.
	SELinuxContext string
	// Exclusive is the request's.
	Exclusive bool
	// IDMappings are the request's.
	IDMappings IDMappings

	public  []string // Data without what is sensitive
	secrets []string // what must never be printed, longest first
}

// ReadOnly reports whether the mount is to be read-only.
func (p Plan) ReadOnly() bool { return slices.Contains(p.Set, "ro") }

// mountOptions says what an option of a mount itself turns on (+) or off (-). The words are those of mount(8).
var mountOptions = map[string]string{
	"ro": "+ro", "rw": "-ro",
	"nosuid": "+nosuid", "suid": "-nosuid",
	"nodev": "+nodev", "dev": "-nodev",
	"noexec": "+noexec", "exec": "-noexec",
	"noatime": "+noatime", "atime": "-noatime",
	"relatime": "+relatime", "norelatime": "-relatime",
	"strictatime": "+strictatime", "nostrictatime": "-strictatime",
	"nodiratime": "+nodiratime", "diratime": "-nodiratime",
	"nosymfollow": "+nosymfollow", "symfollow": "-nosymfollow",
}

// accessTimes are options that exclude each other.
var accessTimes = []string{"noatime", "relatime", "strictatime"}

// ignoredOptions are for mount(8) and for readers of fstab. They mean nothing to the kernel.
var ignoredOptions = []string{"defaults", "auto", "noauto", "nofail", "user", "nouser", "users", "_netdev"}

// contextOptions are those of SELinux, which are no words for Options.
var contextOptions = []string{"context", "fscontext", "defcontext", "rootcontext"}

var propagations = []string{
	"private", "rprivate", "shared", "rshared", "slave", "rslave", "unbindable", "runbindable",
}

// Plan checks the request and sorts its options. An error matches [ErrInvalid] and never holds a sensitive option.
func (r Request) Plan() (Plan, error) {
	target, err := cleanPath("target", r.Target)
	if err != nil {
		return Plan{}, err
	}
	if target == "/" {
		return Plan{}, fmt.Errorf("target is the root directory: %w", ErrInvalid)
	}
	if err := r.checkOptions(); err != nil {
		return Plan{}, fmt.Errorf("target %q: %w", target, err)
	}
	if err := r.checkSource(); err != nil {
		return Plan{}, fmt.Errorf("target %q: %w", target, err)
	}
	p := Plan{Source: r.Source, Target: target, FSType: r.FSType, SELinuxContext: r.SELinuxContext, Exclusive: r.Exclusive, IDMappings: r.IDMappings}
	for _, option := range slices.Concat(r.UserOptions, r.Options) {
		p.add(option)
	}
	p.public = slices.Clip(p.Data)
	p.Data = append(p.public, r.Sensitive...)
	p.secrets = secretsOf(r.Sensitive)
	if p.Propagation == "" && !p.Remount {
		p.Propagation = "private"
	}
	if p.Remount && p.Bind {
		p.FSType = "" // The filesystem has no part in it, as for mount(8).
	}
	return p, p.check()
}

func (r Request) checkOptions() error {
	if err := r.checkUserOptions(); err != nil {
		return err
	}
	for _, option := range slices.Concat(r.UserOptions, r.Options) {
		if strings.Contains(option, ",") {
			return fmt.Errorf("option %s holds a comma; give each option an entry of its own: %w", optionKey(option), ErrInvalid)
		}
		if option == "" || hasControl(option) {
			return fmt.Errorf("option %s is empty or holds a control character: %w", optionKey(option), ErrInvalid)
		}
	}
	for i, option := range r.Sensitive {
		if option == "" || hasControl(option) {
			return fmt.Errorf("sensitive option %d is empty or holds a control character: %w", i, ErrInvalid)
		}
	}
	if hasControl(r.SELinuxContext) || strings.ContainsAny(r.SELinuxContext, `" `) {
		return fmt.Errorf("%s is not the label of an SELinux context: %w", shown(r.SELinuxContext), ErrInvalid)
	}
	if hasControl(r.FSType) || strings.ContainsAny(r.FSType, ",/") {
		return fmt.Errorf("filesystem %s is not a name: %w", shown(r.FSType), ErrInvalid)
	}
	if strings.ContainsRune(r.Source, 0) {
		return fmt.Errorf("source %s holds a NUL: %w", shown(r.Source), ErrInvalid)
	}
	return nil
}

// checkSource refuses a path from which ".." leads elsewhere.
func (r Request) checkSource() error {
	if !path.IsAbs(r.Source) {
		return nil
	}
	_, err := cleanPath("source", r.Source)
	return err
}

// checkUserOptions refuses what a user may not say.
func (r Request) checkUserOptions() error {
	for _, option := range r.UserOptions {
		key, _, _ := strings.Cut(option, "=")
		switch {
		case key == "bind", key == "rbind", key == "remount", slices.Contains(propagations, key):
			return fmt.Errorf("option %s of a user says what kind of mount it is: %w", optionKey(option), ErrInvalid)
		case slices.Contains(contextOptions, key):
			return fmt.Errorf("option %s of a user sets an SELinux context: %w", optionKey(option), ErrInvalid)
		}
	}
	return nil
}

func hasControl(s string) bool {
	return strings.ContainsFunc(s, func(c rune) bool { return c < ' ' || c == 0x7f })
}

// scrub removes the secrets from text.
func (p *Plan) scrub(text string) string {
	return scrubbed(text, p.secrets)
}

func (p *Plan) add(option string) {
	if change, ok := mountOptions[option]; ok {
		p.change(change[:1], change[1:])
		return
	}
	if change, ok := mountOptions[strings.TrimPrefix(option, "r")]; ok && strings.HasPrefix(option, "r") {
		p.change(change[:1], change[1:])
		p.Below = true
		return
	}
	switch {
	case option == "bind":
		p.Bind = true
	case option == "rbind":
		p.Bind, p.Recursive, p.Below = true, true, true
	case option == "remount":
		p.Remount = true
	case slices.Contains(propagations, option):
		p.Propagation = option
	case !slices.Contains(ignoredOptions, option):
		p.Data = append(p.Data, option)
	}
}

func (p *Plan) change(sign, option string) {
	same := func(other string) bool { return other == option }
	p.Set, p.Clear = slices.DeleteFunc(p.Set, same), slices.DeleteFunc(p.Clear, same)
	if sign == "-" {
		p.Clear = append(p.Clear, option)
		return
	}
	if slices.Contains(accessTimes, option) {
		p.Set = slices.DeleteFunc(p.Set, func(other string) bool { return slices.Contains(accessTimes, other) })
	}
	p.Set = append(p.Set, option)
}

// check refuses what does not go together.
func (p *Plan) check() error {
	var why string
	switch {
	case p.Remount:
		switch {
		case p.Bind && len(p.Data) > 0:
			why = "a remount of a bind takes no option of a filesystem"
		case p.SELinuxContext != "":
			why = "an SELinux context is given to a filesystem when it is mounted first"
		}
	case p.Bind:
		switch {
		case p.FSType != "":
			why = "a bind has no filesystem type"
		case len(p.Data) > 0:
			why = "a bind takes no option of a filesystem"
		case p.SELinuxContext != "":
			why = "a bind has the SELinux context of its filesystem"
		case !path.IsAbs(p.Source):
			why = "the source of a bind must be an absolute path"
		}
	case p.FSType == "":
		why = "neither a filesystem type nor the option bind"
	}
	if why == "" && !p.IDMappings.IsZero() {
		if p.Bind && !p.Remount {
			return p.IDMappings.Validate()
		}
		why = "owners are mapped for a new bind only"
	}
	if why == "" {
		return nil
	}
	return fmt.Errorf("target %q: %s: %w", p.Target, why, ErrInvalid)
}

// cleanPath refuses what is no absolute path of the host, and returns it in its shortest form. What says which path is
// meant.
func cleanPath(what, name string) (string, error) {
	switch {
	case !path.IsAbs(name):
		return "", fmt.Errorf("%s %q is not an absolute path: %w", what, name, ErrInvalid)
	case strings.ContainsRune(name, 0):
		return "", fmt.Errorf("%s %q holds a NUL: %w", what, name, ErrInvalid)
	case strings.Contains(name, "/../"), strings.HasSuffix(name, "/.."):
		return "", fmt.Errorf("%s %q holds an element \"..\": %w", what, name, ErrInvalid)
	}
	return path.Clean(name), nil
}
