package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"
	k8smount "k8s.io/mount-utils"

	"github.com/volumekit/volumekit/bench/internal/limits"
	"github.com/volumekit/volumekit/mount"
)

// question asks about mounts and fails when the answer is wrong.
type question struct {
	op, impl string
	ask      func() error
}

// BenchmarkMountTable asks about mounts with n in the table, beside those of the machine.
func BenchmarkMountTable(b *testing.B) {
	for _, n := range tableSizes {
		t := newMountTable(b, n)
		for _, questions := range [][]question{k8sQuestions(t, n), ourQuestions(deadline(b), t, n), limitQuestions(b, t, n)} {
			for _, q := range questions {
				b.Run(fmt.Sprintf("op=%s/mounts=%d/impl=%s", q.op, n, q.impl), func(b *testing.B) {
					must(b, q.ask()) // so that what is asked again was asked before
					b.ReportAllocs()
					reportCPU := countCPU(b)
					for b.Loop() {
						must(b, q.ask())
					}
					reportCPU()
				})
			}
		}
	}
}

// k8sQuestions: mount-utils knows no first and no second time, so that both are measured for themselves. References are
// asked of a mount that has two others; Refs-all is of one that has all n.
func k8sQuestions(t mountTable, n int) []question {
	k := k8smount.New("")
	list := func() error { l, err := k.List(); return want(len(l) > n, err) }
	refs := func() error { r, err := k.GetMountRefs(t.few); return want(len(r) == 2, err) }
	return []question{
		{"List-first", "k8s", list},
		{"List-again", "k8s", list},
		{"Refs-first", "k8s", refs},
		{"Refs-again", "k8s", refs},
		{"Refs-all", "k8s", func() error { r, err := k.GetMountRefs(t.one); return want(len(r) >= n-1, err) }},
		{"IsMountPoint", "k8s", func() error { return want(k.IsMountPoint(t.one)) }},
		{"IsMountPoint-likely", "k8s", func() error { not, err := k.IsLikelyNotMountPoint(t.one); return want(!not, err) }},
		{"Lookup", "k8s", func() error { _, _, err := k8smount.GetDeviceNameFromMount(k, t.one); return err }},
	}
}

// ourQuestions: a Mounter that has just been made has seen no table yet.
func ourQuestions(ctx context.Context, t mountTable, n int) []question {
	m := mount.New(mount.Options{})
	list := func(m *mount.Mounter) error { l, err := m.List(ctx); return want(len(l) > n, err) }
	refs := func(m *mount.Mounter) error { r, err := m.GetMountRefs(ctx, t.few); return want(len(r) == 2, err) }
	return []question{
		{"List-first", "ours", func() error { return list(mount.New(mount.Options{})) }},
		{"List-again", "ours", func() error { return list(m) }},
		{"Refs-first", "ours", func() error { return refs(mount.New(mount.Options{})) }},
		{"Refs-again", "ours", func() error { return refs(m) }},
		{"Refs-all", "ours", func() error { r, err := m.GetMountRefs(ctx, t.one); return want(len(r) >= n-1, err) }},
		{"IsMountPoint", "ours", func() error { return want(m.IsMountPoint(ctx, t.one)) }},
		{"Lookup", "ours", func() error { found, err := m.Lookup(ctx, t.one); return want(found.FSType == "tmpfs", err) }},
	}
}

func limitQuestions(b *testing.B, t mountTable, n int) []question {
	var table limits.MountTable
	var ids []uint64
	buf := make([]byte, 4096)
	questions := []question{
		{"List-first", "limit", func() error { err := table.Load(); return want(len(table.Rows) > n, err) }},
		{"List-first", "limit-statmount", func() (err error) {
			ids, err = limits.ListMounts(ids[:0])
			for _, id := range ids {
				if err := limits.Statmount(id, limits.StatmountAll, buf); err != nil && !errors.Is(err, unix.ENOENT) {
					return err
				}
			}
			return want(len(ids) > n, err)
		}},
		{"List-first", "limit-ids", func() (err error) { ids, err = limits.ListMounts(ids[:0]); return want(len(ids) > n, err) }},
		{"IsMountPoint", "limit", func() error { return want(limits.IsMountPoint(t.one)) }},
		{"Lookup", "limit", func() error {
			id, err := limits.MountID(t.one)
			if err != nil {
				return err
			}
			return limits.Statmount(id, limits.StatmountAll, buf)
		}},
	}
	return append(questions, limitsOfLookingAgain(b)...)
}

// limitsOfLookingAgain ask the kernel whether anything was mounted since.
func limitsOfLookingAgain(b *testing.B) []question {
	f, err := os.Open("/proc/self/mountinfo")
	must(b, err)
	b.Cleanup(func() { f.Close() })
	fds := []unix.PollFd{{Fd: int32(f.Fd()), Events: unix.POLLPRI}}
	_, _ = unix.Poll(fds, 0)
	questions := []question{{"List-again", "limit", func() error {
		c, err := unix.Poll(fds, 0)
		if err == unix.EINTR {
			return nil
		}
		return want(c == 0, err)
	}}}
	fd, err := limits.MountNotifier()
	if err != nil {
		return questions // before Linux 6.15
	}
	b.Cleanup(func() { unix.Close(fd) })
	events := make([]byte, 4096)
	return append(questions, question{"List-again", "limit-fanotify", func() error {
		if _, err := unix.Read(fd, events); err != unix.EAGAIN {
			return fmt.Errorf("something was mounted meanwhile: %w", err)
		}
		return nil
	}})
}
