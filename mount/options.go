package mount

import "log/slog"

// DefaultMaxAbandoned is how many abandoned calls a Mounter bears unless its options say otherwise.
const DefaultMaxAbandoned = 128

// Options configures a [Mounter]. The zero value is ready to use.
type Options struct {
	// Logger gets a line when an abandoned call has ended, since its caller has gone. The caller got the error when the call
	// was abandoned. Nil discards.
	Logger *slog.Logger
	// MaxAbandoned is the number of abandoned calls at which no further call is started; each keeps a thread. Zero means
	// DefaultMaxAbandoned.
	MaxAbandoned int
	// Helpers are the programs mount.TYPE, by type of filesystem. A type that is not named is mounted by the kernel alone.
	Helpers map[string]Helper
	// HelperDir is the absolute path of a directory in which helpers mount before the mount is moved to its target. It and
	// the directories above must not be writable for others; it is made when it is missing. Each mount in progress has one
	// filesystem there, which is named after its target; what a killed program has left is taken off by the next Mount or
	// Unmount of that target. Programs that share it must not share targets. Empty means /run/volumekit/mount.
	HelperDir string
	// Without names kernel features that are treated as missing, so that tests can walk the fall-backs.
	Without Feature
}

// Feature is a set of system calls that a kernel or a seccomp filter may lack. A Mounter tries each every time and falls
// back when it is refused.
type Feature uint

// The features.
const (
	// FeatureOpenat2 is openat2(2), Linux 5.6. The fall-back opens one path element after the other.
	FeatureOpenat2 Feature = 1 << iota
	// FeatureMountFD is open_tree, move_mount, fsopen, fsconfig, fsmount and fspick, Linux 5.2. The fall-back is mount(2).
	FeatureMountFD
	// FeatureMountSetattr is mount_setattr(2), Linux 5.12. The fall-back is mount(2), with which a read-only bind is
	// writable for an instant.
	FeatureMountSetattr
	// FeatureStatxMountRoot is STATX_ATTR_MOUNT_ROOT, Linux 5.8. The fall-back reads the mount table.
	FeatureStatxMountRoot
	// FeatureStatmount is statmount(2), listmount(2) and STATX_MNT_ID_UNIQUE, Linux 6.8. The fall-back reads the mount
	// table, and knows no unique ids.
	FeatureStatmount
	// FeatureFanotify is FAN_MARK_MNTNS of fanotify(7), Linux 6.15. The fall-back compares one mount table with the next.
	FeatureFanotify

	// AllFeatures is the set of all of them.
	AllFeatures Feature = 1<<iota - 1
)

func (f Feature) has(want Feature) bool { return f&want != 0 }
