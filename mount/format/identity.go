package format

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"os"
)

// RenewFile gives the filesystem in a regular file a new identity (UUID), so it can be used beside the filesystem of which
// the file is a copy. The caller has opened the file for reading and writing, and it is attached and mounted nowhere. First
// RenewFile makes the filesystem consistent: by e2fsck -f -p for ext2, ext3 and ext4. For an xfs that was in use when it
// was copied, the kernel replays the log, which takes a loop device for a moment and a kernel of 5.2 or newer. Afterwards
// RenewFile reads the superblock, because the success of a tool proves nothing.
//
// If a program called fsync in a btrfs while it was copied, the copy may have a log tree. Only a mount replays it, and the
// kernel does not mount two btrfs with one identity. This is an error that matches [ErrInUse]. Another copy may be without
// a log tree.
//
// If ctx ends meanwhile, or a tool fails, the filesystem in the file must not be used. A process that is killed leaves no
// loop device and no mount.
func RenewFile(ctx context.Context, file *os.File) error {
	_, err := onFile(ctx, file, renewOp)
	return err
}

func renewOp(ctx context.Context, file *os.File) (nothing, error) {
	found, err := probe(ctx, file)
	if err == nil {
		err = renew(ctx, file, found.Type)
	}
	if err != nil {
		return nothing{}, fmt.Errorf("cannot renew the identity of the filesystem in %q: %w", file.Name(), err)
	}
	return nothing{}, nil
}

// renewer is the tool that renews the identity of a filesystem.
type renewer struct {
	tool, pkg string
	args      []string
	// offset is the position of the identity, in bytes from the start.
	offset int64
}

// renewers are the tools by filesystem type. Other types cannot be renewed.
var renewers = map[string]renewer{
	"ext2":  extRenewer(),
	"ext3":  extRenewer(),
	"ext4":  extRenewer(),
	"xfs":   {tool: "xfs_db", pkg: "xfsprogs", args: []string{"-x", "-f", "-p", "xfs_admin", "-c", "uuid generate"}, offset: 32},
	"btrfs": {tool: "btrfstune", pkg: "btrfs-progs", args: []string{"-m"}, offset: btrfsSuperblock + 32},
}

func extRenewer() renewer {
	return renewer{tool: "tune2fs", pkg: "e2fsprogs", args: []string{"-U", "random"}, offset: extSuperblock + extIdentity}
}

func renewerOf(fsType string) (renewer, error) {
	r, ok := renewers[fsType]
	if !ok {
		return renewer{}, fmt.Errorf("filesystem %q: %w", fsType, ErrUnknownType)
	}
	return r, nil
}

// identity reads the UUID of a filesystem.
func (r renewer) identity(medium io.ReaderAt) (string, error) {
	id, err := readAt(medium, r.offset, 16)
	if err != nil {
		return "", fmt.Errorf("reading the identity: %w", err)
	}
	return hex.EncodeToString(id), nil
}
