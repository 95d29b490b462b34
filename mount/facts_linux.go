package mount

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// facts returns the facts of the mount with the unique id, as the mount table has them. The error is errNoSyscall if this kernel
// cannot return all of them, and matches ErrNotMounted if there is no such mount.
func (r *reader) facts(id uint64) (MountPoint, error) {
	found, err := r.statmount(id, statmountAll)
	if err == nil && found.Path == "" {
		return MountPoint{}, fmt.Errorf("mount %d cannot be reached from here: %w", id, ErrNotMounted)
	}
	return found, err
}

// factsAt is facts for a mount whose path is known. It is faster: the path is the most expensive part of statmount.
func (r *reader) factsAt(id uint64, name string) (MountPoint, error) {
	found, err := r.statmount(id, statmountAll&^statmountMntPoint)
	if err != nil {
		return MountPoint{}, err
	}
	found.Path = name
	return found, nil
}

func (r *reader) statmount(id, mask uint64) (MountPoint, error) {
	if r.without.has(FeatureStatmount) {
		return MountPoint{}, errNoSyscall
	}
	look := r.newScratch()
	defer r.scratches.Put(look)
	status, text, err := statmount(id, mask, look.status[:])
	return mountPointOf(id, &status, string(text), err, &statusParser{parser: parser{words: make([]string, 0, 12)}})
}

// mountPointOf converts a result of statmount.
func mountPointOf(id uint64, status *mountStatus, text string, err error, p *statusParser) (MountPoint, error) {
	switch {
	case errors.Is(err, unix.ENOENT):
		return MountPoint{}, fmt.Errorf("mount %d: %w", id, ErrNotMounted)
	case err != nil:
		return MountPoint{}, fmt.Errorf("statmount: %w", missing(err))
	case status.mask&statmountSBSource == 0: // before Linux 6.13, and when it is empty
		return MountPoint{}, errNoSyscall
	}
	return status.mountPoint(text, p), nil
}

// statusParser converts results of statmount. Like parser, it keeps all options in one array and shares equal neighbours.
type statusParser struct {
	parser

	attr      uint64
	attrWords []string
	super     superKey
	supers    []string
}

// superKey is what the options of a filesystem are made from.
type superKey struct {
	flags uint32
	own   string
}

// mountPoint returns the mount as the mount table describes it. text holds the strings of statmount.
func (s *mountStatus) mountPoint(text string, p *statusParser) MountPoint {
	str := func(mask uint64, offset uint32) string {
		if s.mask&mask == 0 {
			return ""
		}
		return cString(text, offset)
	}
	m := MountPoint{
		UniqueID: s.mntID, ID: uint64(s.mntIDOld), ParentID: uint64(s.parentIDOld),
		Major: s.devMajor, Minor: s.devMinor,
		Root: str(statmountMntRoot, s.mntRoot), Path: str(statmountMntPoint, s.mntPoint),
		Source: tableSource(str(statmountSBSource, s.sbSource)), FSType: str(statmountFSType, s.fsType),
		Options: p.attributes(s.attr), Propagation: s.propagationFields(),
	}
	if subtype := str(statmountFSSubtype, s.fsSubtype); subtype != "" {
		m.FSType += "." + subtype
	}
	m.SuperOptions = p.superOptions(s, text, str(statmountMntOpts, s.mntOpts))
	return m
}

// cString returns the NUL-terminated string at the offset.
func cString(text string, offset uint32) string {
	if int(offset) >= len(text) {
		return ""
	}
	s, _, _ := strings.Cut(text[offset:], "\x00")
	return s
}

// attrWords are the mount table's words for the attributes of statmount, in its order.
var attrWords = []struct {
	attr uint64
	word string
}{
	{unix.MOUNT_ATTR_NOSUID, "nosuid"},
	{unix.MOUNT_ATTR_NODEV, "nodev"},
	{unix.MOUNT_ATTR_NOEXEC, "noexec"},
	{unix.MOUNT_ATTR_NOATIME, "noatime"},
	{unix.MOUNT_ATTR_NODIRATIME, "nodiratime"},
}

// attributes returns the options of a mount.
func (p *statusParser) attributes(attr uint64) []string {
	if attr == p.attr && p.attrWords != nil {
		return p.attrWords
	}
	start := len(p.words)
	p.words = append(p.words, accessWord(attr&unix.MOUNT_ATTR_RDONLY != 0))
	for _, a := range attrWords {
		if attr&a.attr != 0 {
			p.words = append(p.words, a.word)
		}
	}
	if attr&unix.MOUNT_ATTR__ATIME == unix.MOUNT_ATTR_RELATIME {
		p.words = append(p.words, "relatime")
	}
	if attr&unix.MOUNT_ATTR_NOSYMFOLLOW != 0 {
		p.words = append(p.words, "nosymfollow")
	}
	if attr&unix.MOUNT_ATTR_IDMAP != 0 {
		p.words = append(p.words, "idmapped")
	}
	p.attr, p.attrWords = attr, p.since(start)
	return p.attrWords
}

func accessWord(readOnly bool) string { //nolint:revive // It is the word for the flag.
	if readOnly {
		return "ro"
	}
	return "rw"
}

// superOptions returns the flags of the filesystem, the options of a security module, and its own options, in that order.
func (p *statusParser) superOptions(s *mountStatus, text, own string) []string {
	key := superKey{s.sbFlags, own}
	secured := s.mask&statmountOptSecArray != 0 && s.optSecNum > 0
	if key == p.super && p.supers != nil && !secured {
		return p.supers
	}
	start := len(p.words)
	p.words = append(p.words, accessWord(s.sbFlags&unix.MS_RDONLY != 0))
	for _, f := range superWords {
		if s.sbFlags&f.flag != 0 {
			p.words = append(p.words, f.word)
		}
	}
	if secured {
		p.words = append(p.words, securityOptions(text, s.optSecArray, s.optSecNum)...)
	}
	if own != "" {
		p.addOptions(own)
	}
	options := p.since(start)
	if !secured {
		p.super, p.supers = key, options
	}
	return options
}

// securityOptions returns the n options in text from the offset on. The kernel also splits a quoted label at its commas;
// securityOptions joins the parts again.
func securityOptions(text string, at, n uint32) (options []string) {
	for ; n > 0; n-- {
		part := cString(text, at)
		at += uint32(len(part)) + 1
		if last := len(options) - 1; last >= 0 && opensLabel(options[last]) {
			options[last] += "," + part
			continue
		}
		options = append(options, part)
	}
	return options
}

// superWords are the mount table's words for the flags of a filesystem, in its order.
var superWords = []struct {
	flag uint32
	word string
}{{unix.MS_SYNCHRONOUS, "sync"}, {unix.MS_DIRSYNC, "dirsync"}, {unix.MS_LAZYTIME, "lazytime"}}

// propagationFields returns the optional fields of the mount table.
func (s *mountStatus) propagationFields() []string {
	var fields []string
	add := func(word string, group uint64) { fields = append(fields, word+":"+strconv.FormatUint(group, 10)) }
	if s.propagation&unix.MS_SHARED != 0 {
		add("shared", s.peerGroup)
	}
	if s.propagation&unix.MS_SLAVE != 0 {
		add("master", s.master)
		if s.mask&statmountPropagateFrom != 0 && s.propagateFrom != 0 && s.propagateFrom != s.master {
			add("propagate_from", s.propagateFrom)
		}
	}
	if s.propagation&unix.MS_UNBINDABLE != 0 {
		fields = append(fields, "unbindable")
	}
	return fields
}

// existsID reports whether the mount with the unique id is still in this mount namespace, at any path. It takes about a
// microsecond and does not wait for a filesystem. The error matches ErrUnsupported if this kernel has no statmount.
func (r *reader) existsID(id uint64) (bool, error) {
	if r.without.has(FeatureStatmount) {
		return false, ErrUnsupported
	}
	var status mountStatus
	switch err := statmountBasic(id, statmountMntBasic, &status); {
	case err == nil:
		return true, nil
	case errors.Is(err, unix.ENOENT):
		return false, nil
	default:
		return false, fmt.Errorf("statmount: %w: %w", ErrUnsupported, err)
	}
}

// exists reports whether the mount with the identity is still in this mount namespace, at any path. It queries the unique id
// if there is one, and otherwise reads the mount table.
func (r *reader) exists(ctx context.Context, id Identity) (bool, error) {
	if id.UniqueID != 0 {
		if is, err := r.existsID(id.UniqueID); err == nil {
			return is, nil
		}
	}
	table, err := r.readTable(ctx)
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(table, id.Is), nil
}
