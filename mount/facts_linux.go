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

// facts returns the facts of the mount with the unique id, as the mount table would give them. The error is errNoSyscall
// when this kernel cannot give all of them, and matches ErrNotMounted when there is no such mount.
func (r *reader) facts(id uint64) (MountPoint, error) {
	found, err := r.ask(id, statmountAll)
	if err == nil && found.Path == "" {
		return MountPoint{}, fmt.Errorf("mount %d cannot be reached from here: %w", id, ErrNotMounted)
	}
	return found, err
}

// factsAt is facts of a mount that was seen at name, which saves the kernel from finding out its path, the dearest part.
func (r *reader) factsAt(id uint64, name string) (MountPoint, error) {
	found, err := r.ask(id, statmountAll&^statmountMntPoint)
	if err != nil {
		return MountPoint{}, err
	}
	found.Path = name
	return found, nil
}

func (r *reader) ask(id, mask uint64) (MountPoint, error) {
	if r.without.has(FeatureStatmount) {
		return MountPoint{}, errNoSyscall
	}
	look := r.look()
	defer r.looks.Put(look)
	status, text, err := statmount(id, mask, look.facts[:])
	return foundBy(id, &status, string(text), err, &words{parser: parser{words: make([]string, 0, 12)}})
}

// foundBy is what statmount has said of a mount.
func foundBy(id uint64, status *mountStatus, text string, err error, p *words) (MountPoint, error) {
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

// words keeps the options of mounts in one array, and what two neighbours have alike only once, as parser does.
type words struct {
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

// mountPoint is the mount in the words of the mount table. Text holds the strings.
func (s *mountStatus) mountPoint(text string, p *words) MountPoint {
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

// cString is the string at the offset, up to its NUL.
func cString(text string, offset uint32) string {
	if int(offset) >= len(text) {
		return ""
	}
	s, _, _ := strings.Cut(text[offset:], "\x00")
	return s
}

// attrWords are the words of the mount table for the attributes of statmount, in its order.
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

// attributes are the options of a mount.
func (p *words) attributes(attr uint64) []string {
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

// superOptions are the flags of the filesystem, the options of a security module, and its own, in that order.
func (p *words) superOptions(s *mountStatus, text, own string) []string {
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

// securityOptions are the n options that begin in text at the offset. The kernel parts them at every comma, also at those of
// a label in quotes, which are joined again here.
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

// superWords are the words of the mount table for the flags of a filesystem, in its order.
var superWords = []struct {
	flag uint32
	word string
}{{unix.MS_SYNCHRONOUS, "sync"}, {unix.MS_DIRSYNC, "dirsync"}, {unix.MS_LAZYTIME, "lazytime"}}

// propagationFields are the optional fields of the mount table.
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

// existsID reports whether the mount with the unique id is still in this mount namespace, at whatever path. It takes about
// a microsecond and cannot wait for a filesystem. The error matches ErrUnsupported when this kernel cannot tell.
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

// exists reports whether the mount with the identity is still in this mount namespace, at whatever path. It asks for the
// unique id where there is one, and else reads the mount table.
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
