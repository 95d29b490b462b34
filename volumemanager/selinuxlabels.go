package volumemanager

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"path"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/volume"
)

// SELinuxLabels returns the label that files must have for a container to use them, by the rules of this node's container
// runtime. It reads only the node's own configuration.
type SELinuxLabels interface {
	// FileLabel returns the label for a container with these options, such as
	// "system_u:object_r:container_file_t:s0:c10,c20". The label is empty if it is not known before such a container starts.
	// An error says that the options are malformed.
	FileLabel(options *v1.SELinuxOptions) (string, error)
}

// ErrNoSELinux matches the error of [ReadSELinuxLabels] on a host without SELinux: leave [Options].SELinux nil there.
var ErrNoSELinux = errors.New("this host has no SELinux")

const (
	selinuxFS       = "sys/fs/selinux/enforce"
	selinuxConfig   = "etc/selinux/config"
	selinuxContexts = "etc/selinux/%s/contexts/lxc_contexts"
)

// policyLabels are the [SELinuxLabels] of a host's policy.
type policyLabels struct {
	// user, role, kind and level are those of the files of a container without options.
	user, role, kind, level string
}

// ReadSELinuxLabels returns the labels for files that the usual container runtimes of Linux use (containerd, CRI-O, Podman,
// Docker): the label of lxc_contexts in the policy of the host, with the user and the level that the container asks for. If
// a container asks for no level, its runtime draws one when it starts: its label is then empty. root is the root directory
// of the host, as the program sees it: "/", unless the program runs in a container.
//
// The error matches [ErrNoSELinux] if SELinux is missing or disabled. A permissive policy labels files all the same. The
// files are read only once: call ReadSELinuxLabels again after the policy has changed.
func ReadSELinuxLabels(root string) (SELinuxLabels, error) {
	host, err := os.OpenRoot(root)
	if err != nil {
		return nil, fmt.Errorf("SELinux of the host at %q: %w", root, err)
	}
	defer func() { _ = host.Close() }() // It was only read.
	switch _, err := host.Stat(selinuxFS); {
	case errors.Is(err, os.ErrNotExist):
		return nil, fmt.Errorf("no /%s beneath %q: %w", selinuxFS, root, ErrNoSELinux)
	case err != nil:
		return nil, fmt.Errorf("SELinux of the host at %q: %w", root, err)
	}
	policy, err := readAssignment(host, selinuxConfig, "SELINUXTYPE")
	if err != nil {
		return nil, err
	}
	if err := volume.CheckPathElement(policy); err != nil {
		return nil, fmt.Errorf("SELINUXTYPE in /%s: %w", selinuxConfig, err)
	}
	label, err := readAssignment(host, fmt.Sprintf(selinuxContexts, policy), "file")
	if err != nil {
		return nil, err
	}
	parts := strings.SplitN(label, ":", 4)
	if len(parts) != 4 {
		return nil, fmt.Errorf("label %q of files in /%s: give it a user, a role, a type and a level: %w", label, fmt.Sprintf(selinuxContexts, policy), volume.ErrInvalid)
	}
	return policyLabels{user: parts[0], role: parts[1], kind: parts[2], level: parts[3]}, nil
}

// readAssignment returns the value of a name in a file of lines NAME = VALUE.
func readAssignment(host *os.Root, name, key string) (string, error) {
	content, err := host.ReadFile(name)
	if err != nil {
		return "", fmt.Errorf("SELinux policy: %w", err)
	}
	for lines := bufio.NewScanner(bytes.NewReader(content)); lines.Scan(); {
		left, right, found := strings.Cut(lines.Text(), "=")
		if found && strings.TrimSpace(left) == key {
			return strings.Trim(strings.TrimSpace(right), `"`), nil
		}
	}
	return "", fmt.Errorf("SELinux policy: %s has no %s: %w", path.Join("/", name), key, volume.ErrInvalid)
}

// FileLabel implements SELinuxLabels. Role and type of the options are those of processes.
func (l policyLabels) FileLabel(options *v1.SELinuxOptions) (string, error) {
	if options == nil || options.Level == "" {
		return "", nil
	}
	user := l.user
	if options.User != "" {
		user = options.User
	}
	for field, part := range map[string]string{"user": options.User, "role": options.Role, "type": options.Type, "level": options.Level} {
		if strings.ContainsFunc(part, isForeignToLabels) || field != "level" && strings.Contains(part, ":") {
			return "", fmt.Errorf("SELinux %s %q: %w", field, part, volume.ErrInvalid)
		}
	}
	return strings.Join([]string{user, l.role, l.kind, options.Level}, ":"), nil
}

// isForeignToLabels reports whether a character has no place in a part of a label. What has could mean something else where
// labels are written as mount options.
func isForeignToLabels(c rune) bool {
	return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && !strings.ContainsRune("_-.,:", c)
}
