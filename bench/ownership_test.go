package bench

import (
	"fmt"
	"os/exec"
	"strconv"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	k8svolume "k8s.io/kubernetes/pkg/volume"
	volumetypes "k8s.io/kubernetes/pkg/volume/util/types"

	"github.com/volumekit/volumekit/bench/internal/limits"
	"github.com/volumekit/volumekit/mount/mounttest"
	"github.com/volumekit/volumekit/volume/ownership"
)

// group is the fsGroup that trees are given.
const group = 4242

// owner gives a tree to the group.
type owner struct {
	name string
	give func(dir string) error
}

// owners are those of the policy Always, which looks at every file.
func owners(tb testing.TB) []owner {
	return []owner{
		{"k8s", func(dir string) error { return k8sOwnership(dir, nil) }},
		ours(tb, nil),
		{"chgrp", chgrp},
		{"chgrp+chmod", func(dir string) error {
			if err := chgrp(dir); err != nil {
				return err
			}
			return run("chmod", "-R", "g+rwX", dir)
		}},
		limitOwner(1), limitOwner(2), limitOwner(4),
	}
}

// rootOwners are those of the policy OnRootMismatch, which looks at the root and believes it.
func rootOwners(tb testing.TB) []owner {
	onRootMismatch := v1.FSGroupChangeOnRootMismatch
	return []owner{
		{"k8s", func(dir string) error { return k8sOwnership(dir, &onRootMismatch) }},
		ours(tb, &onRootMismatch),
	}
}

func ours(tb testing.TB, policy *v1.PodFSGroupChangePolicy) owner {
	ctx, g := deadline(tb), int64(group)
	return owner{"ours", func(dir string) error {
		_, err := ownership.Apply(ctx, dir, ownership.Options{Group: &g, Policy: policy})
		return err
	}}
}

func chgrp(dir string) error { return run("chgrp", "-R", strconv.Itoa(group), dir) }

func limitOwner(workers int) owner {
	return owner{fmt.Sprintf("limit-j%d", workers), func(dir string) error {
		_, err := limits.ApplyGroup(dir, group, limits.WalkOptions{Workers: workers})
		return err
	}}
}

// staged is what Kubernetes asks about a volume before it changes its owner.
type staged struct {
	k8svolume.MetricsNil
	dir string
}

func (s *staged) GetPath() string                           { return s.dir }
func (*staged) SetUp(k8svolume.MounterArgs) error           { return nil }
func (*staged) SetUpAt(string, k8svolume.MounterArgs) error { return nil }
func (*staged) GetAttributes() k8svolume.Attributes         { return k8svolume.Attributes{Managed: true} }
func quietly(volumetypes.CompleteFuncParam)                 {}

func k8sOwnership(dir string, policy *v1.PodFSGroupChangePolicy) error {
	g := int64(group)
	return k8svolume.NewVolumeOwnership(&staged{dir: dir}, dir, &g, policy, quietly).ChangePermissions()
}

func reset(tb testing.TB, dir string) {
	tb.Helper()
	must(tb, limits.ResetGroup(dir, limits.WalkOptions{Workers: 2}))
}

// BenchmarkOwnership gives trees to a group. In state=first everything has to change; in state=unchanged nothing has,
// and every file is looked at; in state=root nothing has, and the root alone is looked at.
func BenchmarkOwnership(b *testing.B) {
	mounttest.RequireRoot(b)
	for _, c := range treeCases[:2] {
		dir := tree(b, c)
		for _, state := range []string{"first", "unchanged", "root"} {
			all := owners(b)
			if state == "root" {
				all = rootOwners(b)
			}
			must(b, k8sOwnership(dir, nil))
			for _, o := range all {
				b.Run(fmt.Sprintf("%v/state=%s/impl=%s", c, state, o.name), func(b *testing.B) {
					o.run(b, c.files, dir, state == "first")
				})
			}
		}
		reset(b, dir)
	}
}

func (o owner) run(b *testing.B, files int, dir string, first bool) {
	b.ReportAllocs()
	var used time.Duration
	for b.Loop() {
		if first {
			b.StopTimer()
			reset(b, dir)
			b.StartTimer()
		}
		c := cpu()
		must(b, o.give(dir))
		used += cpu() - c
	}
	reportPerFile(b, files, used)
}

// BenchmarkOwnershipWrites gives a tree to the group that it has already and counts what then goes to the disk.
func BenchmarkOwnershipWrites(b *testing.B) {
	mounttest.RequireRoot(b)
	c := treeCases[1]
	v := newImage(b, c)
	v.remount(b)
	must(b, k8sOwnership(v.dir, nil))
	for _, o := range owners(b) {
		b.Run(fmt.Sprintf("files=%d/state=unchanged/impl=%s", c.files, o.name), func(b *testing.B) {
			must(b, v.sync())
			before := v.written(b)
			for b.Loop() {
				must(b, o.give(v.dir))
				must(b, v.sync())
			}
			b.ReportMetric(float64(v.written(b)-before)/float64(b.N), "written-B")
		})
	}
}

// treeOfOwners describes mode and group of everything in dir.
func treeOfOwners(tb testing.TB, dir string) string {
	tb.Helper()
	cmd := exec.Command("find", ".", "-printf", "%p %m %g\n")
	cmd.Dir = dir
	out, err := cmd.Output()
	must(tb, err)
	return string(out)
}
