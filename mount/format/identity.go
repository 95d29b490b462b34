package format

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"os"
)

// RenewFile gives the filesystem in a regular file that the caller opened for reading and writing an identity (UUID) of its
// own, so that it can be used beside the one that the file is a copy of. Before that it is made whole: e2fsck -f -p for ext2,
// ext3 and ext4, a replay of the log by the kernel for an xfs that was in use when it was copied, which takes a loop device
// for a moment and a kernel of 5.2 or newer. The file must be attached and mounted nowhere. What is there is told by its
// superblock afterwards; the tools' word is not enough.
//
// A btrfs that was copied while something was fsynced in it keeps a log tree that only a mount replays, which a second btrfs
// of one identity cannot have: it is an error that matches [ErrInUse], and another copy may be without.
//
// When ctx ends meanwhile, or a tool fails, the file holds a filesystem that must not be used. A process that is killed leaves
// no loop device and no mount.
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

// renewer is the tool that gives a filesystem a new identity.
type renewer struct {
	tool, pkg string
	args      []string
	// offset is where the superblock has the identity.
	offset int64
}

// renewers are the types whose identity can be renewed.
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
