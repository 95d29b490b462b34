package mounttest

import (
	"encoding/binary"
	"errors"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// FUSEOp is an operation of a [FUSE]: an opcode of the kernel's protocol (include/uapi/linux/fuse.h).
type FUSEOp uint32

// The operations that can be faulty.
const (
	FUSELookup   FUSEOp = 1
	FUSEGetattr  FUSEOp = 3
	FUSESetattr  FUSEOp = 4
	FUSEReadlink FUSEOp = 5
	FUSESymlink  FUSEOp = 6
	FUSEMkdir    FUSEOp = 9
	FUSEUnlink   FUSEOp = 10
	FUSERmdir    FUSEOp = 11
	FUSERename   FUSEOp = 12
	FUSEOpen     FUSEOp = 14
	FUSERead     FUSEOp = 15
	FUSEWrite    FUSEOp = 16
	FUSEStatfs   FUSEOp = 17
	FUSEFsync    FUSEOp = 20
	FUSEOpendir  FUSEOp = 27
	FUSEReaddir  FUSEOp = 28
	FUSECreate   FUSEOp = 35
)

// Operations that cannot be faulty.
const (
	fuseForget      FUSEOp = 2
	fuseRelease     FUSEOp = 18
	fuseInit        FUSEOp = 26
	fuseReleasedir  FUSEOp = 29
	fuseInterrupt   FUSEOp = 36
	fuseDestroy     FUSEOp = 38
	fusePoll        FUSEOp = 40
	fuseBatchForget FUSEOp = 42
	fuseRename2     FUSEOp = 45
)

func (op FUSEOp) canFail() bool {
	switch op {
	case fuseForget, fuseRelease, fuseInit, fuseReleasedir, fuseInterrupt, fuseDestroy, fusePoll, fuseBatchForget:
		return false
	default:
		return true
	}
}

// canReply is false for requests that the kernel wants no answer to.
func (op FUSEOp) canReply() bool {
	return op != fuseForget && op != fuseBatchForget && op != fuseInterrupt
}

// fuseRequest is one request of the kernel.
type fuseRequest struct {
	op     FUSEOp
	unique uint64
	node   uint64
	uid    uint32
	gid    uint32
	body   []byte
}

// The sizes of the protocol.
const (
	fuseInHeader  = 40
	fuseOutHeader = 16
	fuseMaxWrite  = 1 << 16
	fuseBuffer    = 1 << 18
)

// parseFUSE reads struct fuse_in_header and copies what follows.
func parseFUSE(request []byte) (fuseRequest, bool) {
	if len(request) < fuseInHeader {
		return fuseRequest{}, false
	}
	u32 := func(at int) uint32 { return binary.NativeEndian.Uint32(request[at:]) }
	u64 := func(at int) uint64 { return binary.NativeEndian.Uint64(request[at:]) }
	op := FUSEOp(u32(4))
	if op == fuseRename2 {
		op = FUSERename
		request = slices.Delete(slices.Clone(request), fuseInHeader+8, fuseInHeader+16) // its flags
	}
	return fuseRequest{
		op: op, unique: u64(8), node: u64(16), uid: u32(24), gid: u32(28),
		body: slices.Clone(request[fuseInHeader:]),
	}, true
}

// serve answers until the descriptor is closed or the filesystem is unmounted.
func (f *FUSE) serve() {
	defer close(f.ended)
	buffer := make([]byte, fuseBuffer)
	for {
		n, err := f.device.Read(buffer)
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINTR) {
			continue // the caller has gone before its request was read
		}
		if err != nil {
			return
		}
		if r, ok := parseFUSE(buffer[:n]); ok {
			f.handle(r)
		}
	}
}

func (f *FUSE) handle(r fuseRequest) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.counts[r.op]++
	rule, faulty := f.rule(r)
	switch {
	case !faulty:
		f.carryOut(r)
	case rule.hang:
		f.hung = append(f.hung, r)
	default:
		f.reply(r, rule.errno, nil)
	}
	close(f.changed)
	f.changed = make(chan struct{})
}

// rule finds the fault that fits the request.
func (f *FUSE) rule(r fuseRequest) (fuseRule, bool) {
	if !r.op.canFail() {
		return fuseRule{}, false
	}
	at := slices.IndexFunc(f.rules, func(rule fuseRule) bool {
		if rule.op != FUSEAny && rule.op != r.op {
			return false
		}
		return len(rule.paths) == 0 || slices.Contains(rule.paths, f.tree.pathOf(r))
	})
	if at < 0 {
		return fuseRule{}, false
	}
	return f.rules[at], true
}

func (f *FUSE) carryOut(r fuseRequest) {
	body, errno := f.tree.do(r)
	f.reply(r, errno, body)
}

// reply writes struct fuse_out_header and the body. It is no error that the caller has gone, or the filesystem.
func (f *FUSE) reply(r fuseRequest, errno syscall.Errno, body []byte) {
	if !r.op.canReply() {
		return
	}
	if errno != 0 {
		body = nil
	}
	var w fuseWriter
	w.u32(uint32(fuseOutHeader+len(body)), uint32(-int32(errno)))
	w.u64(r.unique)
	w.bytes = append(w.bytes, body...)
	_, _ = f.device.Write(w.bytes)
}

// fuseWriter lays out a structure of the protocol.
type fuseWriter struct{ bytes []byte }

func (w *fuseWriter) u64(values ...uint64) {
	for _, v := range values {
		w.bytes = binary.NativeEndian.AppendUint64(w.bytes, v)
	}
}

func (w *fuseWriter) u32(values ...uint32) {
	for _, v := range values {
		w.bytes = binary.NativeEndian.AppendUint32(w.bytes, v)
	}
}

func (w *fuseWriter) u16(values ...uint16) {
	for _, v := range values {
		w.bytes = binary.NativeEndian.AppendUint16(w.bytes, v)
	}
}
