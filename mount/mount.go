package mount

import (
	"context"
	"errors"
	"os"
	"slices"
	"time"

	"github.com/volumekit/volumekit/internal/outcome"
)

// Interface is what a plugin needs of mounts. The Linux implementation is [Mounter]; fake.Mounter is a model of it in
// memory that passes the same suite (mount/mounttest). Every path is absolute and as the host sees it. All methods may
// be called from several goroutines at once.
//
// A method returns soon after ctx has ended. When the system call behind it cannot be interrupted, the method abandons it:
// the error is an [*AbandonedError], which matches [ErrUncertain] and says when the call has ended.
type Interface interface {
	// Mount mounts request.Source at request.Target. A missing target is made first: a directory with mode 0750, or for a
	// bind of something that is not a directory an empty file with mode 0640. Missing directories above it are made too,
	// with mode 0750; the umask applies to all. When the mount fails, Mount removes what it made and nothing is mounted,
	// unless the error matches [ErrUncertain]. A directory above that is in use by then stays. A
	// remount makes nothing and needs a mount. Where something is mounted already, it mounts on top, unless the request is
	// Exclusive.
	Mount(ctx context.Context, request Request) error
	// Unmount unmounts every mount at target, as seen in the mount table, and verifies there that none is left. It leaves the
	// directory. The error matches [ErrNotMounted] when there was none. A mount that is in use stays: the error matches
	// unix.EBUSY, and [ErrUncertain] too when Unmount has unmounted others above it.
	Unmount(ctx context.Context, target string, options UnmountOptions) error
	// RemoveTarget removes the mount point path by rmdir, or by unlink when it is an empty file, and leaves the
	// directories above. A path that does not exist is no error; one that is mounted or not empty is left whole and is an
	// error that matches unix.EBUSY or unix.ENOTEMPTY. The kernel itself refuses a mount point and a directory that is not
	// empty. It has no such call for files: a write between the look at the size and the unlink is lost, so keep mount
	// points where only your program writes.
	RemoveTarget(ctx context.Context, path string) error
	// IsMountPoint reports whether something is mounted at path itself. It never waits for the filesystem that is
	// mounted there. A path that does not exist returns an error that matches fs.ErrNotExist.
	IsMountPoint(ctx context.Context, path string) (bool, error)
	// Lookup returns the facts of the mount at path, of the uppermost when several are stacked there, as they are at this
	// moment. The error matches [ErrNotMounted] when nothing is mounted at path itself, whether it exists or not. It never
	// waits for the filesystem that is mounted there.
	Lookup(ctx context.Context, path string) (MountPoint, error)
	// List returns the mount table of this process's mount namespace, in the kernel's order: a later mount hides an
	// earlier one at the same path, unless it came by propagation where something was mounted already. Then it is beneath
	// that, which has it for its parent (ParentID) from then on; Lookup returns the uppermost. The slice and all that it
	// points to may be shared with others and must not be changed: clone it first.
	List(ctx context.Context) ([]MountPoint, error)
	// GetMountRefs returns the paths of every other mount of what is mounted at path: same device, same root. A path
	// that is not a mount point has none. The order says nothing. The slice may be shared with others and must not be
	// changed: clone it first.
	GetMountRefs(ctx context.Context, path string) ([]string, error)
}

// Request says what to mount.
type Request struct {
	// Source is the device, the remote path, or for a bind the absolute path that is bound; for a filesystem without a
	// source, such as tmpfs, any name for the mount table. Symbolic links in the path of a bind are followed: to bind
	// what lies in a directory that others write to, open it safely and give /proc/self/fd/N.
	Source string
	// Target is the absolute path at which to mount. No element of it may be a symbolic link: the error then matches
	// unix.ELOOP.
	Target string
	// FSType is the filesystem, such as "ext4". It is empty for a bind.
	FSType string
	// Options are those of mount(8): "bind" and "rbind" make a bind; "ro", "nosuid", "nodev", "noexec" and the like
	// belong to the mount; "remount" changes the mount that is at Target; everything else is given to the filesystem.
	// An option must hold no comma, no control character and no NUL. Options that exclude each other are settled by the
	// last. [Request.Plan] sorts them.
	//
	// An option of the mount itself is for the mounts below, too, with a leading r, as in runc and containerd: "rro",
	// "rnosuid"; also on a remount. With "rbind" it always is, so that no writable part is left in a read-only bind.
	// Propagation is changed by "shared" and the like, with a leading r for the mounts below; together with "remount" it is
	// that of the mount which is at Target.
	Options []string
	// UserOptions are options from an untrusted user, such as those of a volume's spec. Options override them, so that a
	// user's "suid" does not undo a "nosuid" there. Options that say which kind of mount it is ("bind", "remount", "shared",
	// ...) and options of SELinux are refused in them. The caller decides which options of a filesystem a user may give.
	UserOptions []string
	// SELinuxContext is the label that all files of the filesystem are to have, such as
	// "system_u:object_r:container_file_t:s0:c1,c2": the option context= of mount(8), without quotes. It is apart from
	// Options because a label may hold commas. Where the kernel runs no SELinux the error matches ErrUnsupported and nothing
	// is mounted; mount(8) drops the option there without a word, and kubelet (1.36) does not ask for it when it finds no
	// SELinux. A filesystem that is mounted already has its label: another one is refused by the kernel, and a bind or a
	// remount takes none.
	SELinuxContext string
	// Exclusive refuses a target at which something is mounted: the error matches [ErrMounted], and nothing is changed. Without it
	// the mount goes on top. A target that is missing costs no look. A remount has no use for it.
	Exclusive bool
	// IDMappings map the owners of what a bind shows, with "rbind" also of the mounts below. The zero value maps nothing. Where
	// the kernel cannot do it, see [Mounter.CheckIDMappings], the error matches ErrUnsupported and nothing is mounted. A mount
	// that is not a new bind takes none.
	IDMappings IDMappings
	// Sensitive are options for the filesystem, such as the password of a share. Their values never appear in an error, a
	// log or an event, and an option without a value does not appear at all. The values may hold commas, since options are not joined (on kernels before Linux 5.2 they
	// have to be, and a comma is then an error that matches ErrUnsupported).
	Sensitive []string
}

// UnmountOptions says how hard to try. The zero value asks for a plain unmount.
type UnmountOptions struct {
	// Force is how long to wait for the plain unmount before the mount is aborted (MNT_FORCE), which makes callers of a
	// dead server fail. Zero never forces. Until then a busy mount is tried again and again.
	Force time.Duration
	// Lazy detaches the mount from the tree, with all mounts below it, when it is still busy after everything above, and
	// leaves it to the kernel to end it. Processes with open files there continue to use them. Data that is not yet written
	// may be lost without a trace: the caller must report that. Lazy does not help against a call that hangs.
	Lazy bool
	// Expect is the mount that is meant: as [MountPoint.Identity] has returned it when the mount was made, or as much as is
	// known of it, such as [MemoryIdentity]. Then only what it matches is taken off. When anything else is uppermost at the
	// path, the error matches [ErrForeign], names what was found and what was expected, and nothing is taken off, not even
	// the mount that is meant and lies below. What lies below the
	// mount that is meant stays, and is reported likewise: the error then matches [ErrUncertain] too, since a part is done.
	// A plain unmount keeps this promise against a process that mounts on top, or moves the mount away, at the same moment. The
	// one exception is an unused mount that this process has itself marked with MNT_EXPIRE. A plain unmount
	// finds the mount busy while it bears others, also those that the kernel makes by itself (NFS with crossmnt) and that an
	// unmount without Expect takes along. Before Force and Lazy the path is looked at once more; a mount that comes in the
	// instant between that look and the call is aborted or detached in place of ours, which the kernel offers no means
	// against. The zero Identity means whatever is there.
	Expect Identity
}

// MountPoint is one line of the mount table.
type MountPoint struct {
	// UniqueID is the mount's id that the kernel never gives to another (until the next boot); 0 where the kernel has none,
	// which is before Linux 6.8.
	UniqueID uint64
	// ID is the mount's id, which the kernel uses again after the mount is gone.
	ID uint64
	// ParentID is the id of the mount that this one is mounted on.
	ParentID uint64
	// Major and Minor are the device number of the filesystem.
	Major, Minor uint32
	// Root is the path within the filesystem that is mounted; "/" unless it is a bind of a part.
	Root string
	// Path is the absolute path of the mount point, decoded.
	Path string
	// Source is the device or the remote path; empty when the filesystem has none.
	Source string
	// FSType is the filesystem.
	FSType string
	// Options are those of this mount, such as "ro" and "nosuid".
	Options []string
	// SuperOptions are those of the filesystem. They may hold secrets.
	SuperOptions []string
	// Propagation holds the optional fields, such as "shared:7".
	Propagation []string
}

// ReadOnly reports whether writes through this mount are refused, by the mount or by its filesystem.
func (m MountPoint) ReadOnly() bool {
	return slices.Contains(m.Options, "ro") || slices.Contains(m.SuperOptions, "ro")
}

// IsRoot reports whether an open directory is the root of this mount. Look the mount up while the directory is open: the kernel
// keeps a mount's id from other mounts only that long.
func (m MountPoint) IsRoot(dir *os.File) (bool, error) { return m.isRoot(dir) }

// The sentinels of this package. Match them with errors.Is; every one survives any wrapping. The errno of a failed
// system call is matched likewise: errors.Is(err, unix.EBUSY).
var (
	// ErrUncertain says that the call may have had its effect, or may still have it. It is volume.ErrUncertain.
	ErrUncertain = outcome.ErrUncertain
	// ErrTransient says that nothing was begun. It is volume.ErrTransient.
	ErrTransient = outcome.ErrTransient
	// ErrNotMounted says that nothing is mounted at the path.
	ErrNotMounted = errors.New("not mounted")
	// ErrMounted says that something is mounted at the target of an exclusive request.
	ErrMounted = errors.New("something is mounted there already")
	// ErrForeign says that the mount at the path is not the expected one, and was not touched. Unmount returns it if its
	// options name the expected mount.
	ErrForeign = outcome.ErrForeign
	// ErrUnsupported says that this platform or this kernel cannot do what was asked for.
	ErrUnsupported = errors.New("not supported here")
	// ErrInvalid says that a request is malformed.
	ErrInvalid = errors.New("invalid mount request")
	// ErrTooManyMounts says that the mount namespace holds as many mounts as the machine lets it; it matches unix.ENOSPC too.
	ErrTooManyMounts = errors.New("this mount namespace may not hold more mounts: unmount what is not needed, or raise sysctl fs.mount-max")
	// ErrFilesystemFailed says that a filesystem has failed after an error, or was shut down.
	ErrFilesystemFailed = errors.New("the filesystem has failed and serves no reads or writes: unmount it everywhere, so that it is checked and mounted anew")
	// ErrStuck says that a call did not start because an earlier one on the same path is still in the kernel, or
	// because too many calls are.
	ErrStuck = errors.New("an earlier call is still in the kernel")
)
