package bench

import (
	"context"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/kubernetes/pkg/volume/util/fs"

	"github.com/volumekit/volumekit/bench/internal/limits"
	"github.com/volumekit/volumekit/mount/mounttest"
	"github.com/volumekit/volumekit/volume/usage"
)

// measurer sums what a tree occupies.
type measurer struct {
	name    string
	measure func(dir string) (limits.Usage, error)
}

func measurers(tb testing.TB, options ...limits.WalkOptions) []measurer {
	all := []measurer{
		{"k8s", func(dir string) (limits.Usage, error) { u, err := fs.DiskUsage(dir); return limits.Usage(u), err }},
		{"ours", ourMeasure(deadline(tb))},
		{"du", du},
	}
	for _, o := range options {
		all = append(all, measurer{walkName(o), func(dir string) (limits.Usage, error) { return limits.DiskUsage(dir, o) }})
	}
	return all
}

// ourMeasure measures as a program does, which keeps one Measurer for all its volumes.
func ourMeasure(ctx context.Context) func(dir string) (limits.Usage, error) {
	measurer := new(usage.Measurer)
	return func(dir string) (limits.Usage, error) {
		u, err := measurer.Measure(ctx, dir)
		return limits.Usage{Bytes: u.Bytes, Inodes: u.Inodes}, want(!u.ByQuota, err) // the kernel's count is no walk
	}
}

func walkName(o limits.WalkOptions) string {
	name := fmt.Sprintf("limit-j%d", o.Workers)
	if o.RawSyscalls {
		name += "-raw"
	}
	return name
}

// du knows no number of inodes; it is left zero.
func du(dir string) (limits.Usage, error) {
	out, err := exec.Command("du", "-s", "--block-size=1", dir).Output()
	if err != nil {
		return limits.Usage{}, err
	}
	n, err := strconv.ParseInt(strings.Fields(string(out))[0], 10, 64)
	return limits.Usage{Bytes: n}, err
}

// BenchmarkDiskUsageWarm sums trees whose inodes are in the kernel's caches.
func BenchmarkDiskUsageWarm(b *testing.B) {
	for _, c := range treeCases {
		dir := tree(b, c)
		for _, m := range measurers(b, limits.WalkOptions{Workers: 1}, limits.WalkOptions{Workers: 2},
			limits.WalkOptions{Workers: 2, RawSyscalls: true}) {
			b.Run(fmt.Sprintf("%v/impl=%s", c, m.name), func(b *testing.B) {
				_, err := m.measure(dir)
				must(b, err)
				m.run(b, c.files, dir, nil)
			})
		}
	}
}

// BenchmarkDiskUsageCold sums trees on a filesystem that was mounted a moment ago, of which nothing is cached here.
func BenchmarkDiskUsageCold(b *testing.B) {
	mounttest.RequireRoot(b)
	for _, c := range treeCases[:2] {
		v := newImage(b, c)
		for _, m := range measurers(b, limits.WalkOptions{Workers: 2}, limits.WalkOptions{Workers: 4}, limits.WalkOptions{Workers: 8}) {
			b.Run(fmt.Sprintf("%v/impl=%s", c, m.name), func(b *testing.B) { m.run(b, c.files, v.dir, v.remount) })
		}
	}
}

// run measures dir again and again, each time after before, which is not timed.
func (m measurer) run(b *testing.B, files int, dir string, before func(testing.TB)) {
	b.ReportAllocs()
	var used time.Duration
	for b.Loop() {
		if before != nil {
			b.StopTimer()
			before(b)
			b.StartTimer()
		}
		c := cpu()
		_, err := m.measure(dir)
		must(b, err)
		used += cpu() - c
	}
	reportPerFile(b, files, used)
}
