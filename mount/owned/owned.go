// Package owned proves that a directory is the one that a program made, before its content is deleted or given away.
//
// A path proves nothing: a mount may lie over it or over a directory above, and another program may have replaced the
// directory. So the program that makes a directory records its identity elsewhere, as a proof. Later it compares the proof
// with the directory to which the path leads. The proof outlives the program and the boot. It lies on the same mount as the
// directory, so a mount that hides one of them is noticed.
package owned

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// ErrUnproven says that nothing proves that a directory is the one that was made: there is no proof, the proof is of another
// directory, or a mount hides the one or the other.
var ErrUnproven = errors.New("nothing proves that it is the directory that was made here")

// Identity identifies a directory. Two directories of one filesystem never have the same identity, unless the filesystem has no birth
// times and has reused an inode.
type Identity struct {
	// Filesystem is the id of the filesystem from statfs(2).
	Filesystem uint64
	// Inode is the number of the directory in the filesystem.
	Inode uint64
	// Seconds and Nanoseconds are the time of its birth since 1970; both are 0 if the filesystem does not keep it.
	Seconds     int64
	Nanoseconds uint32
}

// format is the format of an identity as the target of a link.
const format = "made:%x:%d:%d.%d"

func (i Identity) link() string {
	return fmt.Sprintf(format, i.Filesystem, i.Inode, i.Seconds, i.Nanoseconds)
}

func parseLink(link string) (i Identity, err error) {
	if _, err := fmt.Sscanf(link, format, &i.Filesystem, &i.Inode, &i.Seconds, &i.Nanoseconds); err != nil || i.link() != link {
		return Identity{}, fmt.Errorf("%q is no proof: %w", link, ErrUnproven)
	}
	return i, nil
}

// Directory has the paths of a directory and of its proof. Both are absolute and clean, and no element of them is a link. Calls for one
// Directory must not run at the same time.
type Directory struct {
	// Path is the path of the directory.
	Path string
	// Proof is the path of the proof: a symbolic link whose target is the identity and leads nowhere. A link and its target are made
	// in one step, which a power cut does not split. The proof must be on the same mount as the directory.
	Proof string
}

// ForgetBelow removes all proofs in the directory proofs if the directory top is gone. The proofs are of directories below top. A power
// cut can leave such proofs, which nothing else refers to. If a directory below top is made meanwhile, its proof stays, provided that
// its parents were made before the proof. ForgetBelow leaves other files alone.
func ForgetBelow(top, proofs string) error {
	entries, err := os.ReadDir(proofs)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, entry := range entries {
		if gone, lookErr := isGone(top); lookErr != nil || !gone {
			return errors.Join(err, lookErr)
		}
		err = errors.Join(err, forgetBelow(top, filepath.Join(proofs, entry.Name())))
	}
	return err
}

// forgetBelow removes one proof, and makes it again if a directory was made below top meanwhile.
func forgetBelow(top, proof string) error {
	link, err := os.Readlink(proof)
	if err != nil {
		return nil //nolint:nilerr // It is no link, or is gone.
	}
	if _, err := parseLink(link); err != nil {
		return nil //nolint:nilerr // It is no proof.
	}
	if err := os.Remove(proof); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing a proof of a directory that is gone: %w", err)
	}
	gone, err := isGone(top)
	if err == nil && gone {
		return nil
	}
	if again := os.Symlink(link, proof); again != nil && !errors.Is(again, fs.ErrExist) {
		err = errors.Join(err, fmt.Errorf("making a proof again: %w", again))
	}
	return err
}

func isGone(path string) (bool, error) {
	_, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	return false, err
}

// Seen is the identity of a directory when its path was read. It is valid while the program runs and the filesystem stays mounted.
type Seen struct {
	// Identity is the identity of the directory.
	Identity Identity
	// Mount is the id of the mount of the directory.
	Mount uint64
}
