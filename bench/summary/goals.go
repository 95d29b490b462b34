package main

// goal is one line of the table: a figure of ours that must be so many times better than that of another program, or at most so
// much, or grow at most so far.
type goal struct {
	work string
	// bench is the benchmark without its implementation, and metric what is looked at of it; empty means time.
	bench, metric string
	// ours is our implementation; empty means ours.
	ours string
	// against is the implementation that ours is compared with; empty means k8s.
	against string
	// limit is the implementation that shows what bare system calls take, if there is one.
	limit string
	// least is how many times better ours must be: the other divided by ours. Zero, without another goal: the row is information.
	least float64
	// most is the greatest figure that is allowed in any round, when limited is set.
	most    float64
	limited bool
	// small is the benchmark of a smaller problem, of which ours may be at most flat times the time. Zero: it is information.
	small string
	flat  float64
}

// goals are those of the orchestration, of the cluster side and of the kernel layer.
var goals = []goal{
	{work: "start and finish an operation, no others pending", bench: "PendingRun/pending=0", limit: "limit"},
	{work: "the same, 1,000 others", bench: "PendingRun/pending=1000", limit: "limit"},
	{work: "the same, 10,000 others", bench: "PendingRun/pending=10000", limit: "limit"},
	{work: "the same, waited for by `Done`", bench: "PendingRun/pending=10000", ours: "ours-done", limit: "limit"},
	{work: "the same, time with 10,000 others ÷ time with 100", bench: "PendingRun/pending=10000", small: "PendingRun/pending=100"},
	{work: "the same, allocations", bench: "PendingRun/pending=10000", metric: "allocs/op"},
	{work: "a burst of 10,000 operations", bench: "PendingBurst/operations=10000", limit: "limit", least: 20},
	{work: "is an operation pending, 10,000 pending", bench: "IsPending/pending=10000", limit: "limit", least: 1000},
	{work: "the same, allocations", bench: "IsPending/pending=10000", metric: "allocs/op", limited: true},
	{work: "find the plugin of a spec, 1 plugin", bench: "FindPlugin/goroutines=one/plugins=1", limit: "limit"},
	{work: "the same among 30", bench: "FindPlugin/goroutines=one/plugins=30", limit: "limit"},
	{work: "the same, from two goroutines at once", bench: "FindPlugin/goroutines=all/plugins=30", limit: "limit"},
	{work: "the same, time among 30 ÷ time with 1", bench: "FindPlugin/goroutines=one/plugins=30", small: "FindPlugin/goroutines=one/plugins=1"},
	{work: "the same, allocations", bench: "FindPlugin/goroutines=one/plugins=30", metric: "allocs/op", limited: true},
	{work: "the same among 30 plugins that declare nothing", bench: "FindPlugin/goroutines=one/plugins=30", ours: "ours-predicates", limit: "limit"},
	{work: "the volumes of one pod, yielded, 10,000 pods with 5 volumes each", bench: podNames, limit: "limit"},
	{work: "the same, copied into a map, as Kubernetes does", bench: podNames, ours: "ours-copied", limit: "limit"},
	{work: "the same, time with 10,000 pods ÷ time with 1,000", bench: podNames, small: "Cache/op=names-of-pod/pods=1000"},
	{work: "the same, of one pod again and again", bench: samePod, small: "Cache/op=names-of-same-pod/pods=1000"},
	{work: "the mounted volumes of one pod, yielded", bench: podMounts, limit: "limit"},
	{work: "the same, copied, as Kubernetes does", bench: podMounts, ours: "ours-copied", limit: "limit"},
	{work: "which volumes of one pod must be remounted", bench: "Cache/op=MarkRemountRequired/pods=10000", limit: "limit"},
	{work: "add a pod to a volume and take it off, 50,000 volumes", bench: addPod, limit: "limit"},
	{work: "the same, allocations", bench: addPod, metric: "allocs/op"},
	{work: "mark a volume attached, and detached", bench: markAttached, limit: "limit"},
	{work: "the same, allocations", bench: markAttached, metric: "allocs/op"},
	{work: "mark a volume mounted, and unmounted", bench: markMounted, limit: "limit"},
	{work: "the same, allocations", bench: markMounted, metric: "allocs/op"},
	{work: "go through all volumes to mount, 50,000", bench: allToMount, limit: "limit"},
	{work: "the same, allocations", bench: allToMount, metric: "allocs/op"},
	{work: "go through all mounted volumes, 50,000", bench: allMounted, limit: "limit"},
	{work: "the same, allocations", bench: allMounted, metric: "allocs/op"},
	{work: "the volumes that no pod has, 50,000 volumes, none of them", bench: "Cache/op=GetUnmountedVolumes/pods=10000"},
	{work: "what a volume needs before a pod can use it", bench: "Cache/op=ASW.PodExistsInVolume/pods=10000", limit: "limit"},
	{work: "what a pod waits in `WaitForAttachAndMount`, idle node, median", bench: wait0, metric: "p50-ns", limit: "limit", least: 1000},
	{work: "the same, 99th percentile", bench: wait0, metric: "p99-ns", limit: "limit", least: 300},
	{work: "the same with 1,000 volumes mounted, median", bench: "ManagerWait/mounted=1000", metric: "p50-ns", limit: "limit", least: 1000},
	{work: "the same, 99th percentile", bench: "ManagerWait/mounted=1000", metric: "p99-ns", limit: "limit", least: 300},
	{work: "the same with 10,000 volumes mounted, median", bench: wait10k, metric: "p50-ns", limit: "limit", least: 1000},
	{work: "the same, 99th percentile", bench: wait10k, metric: "p99-ns", limit: "limit", least: 300},
	{work: "one volume, from wanted to mounted", bench: "ManagerMount/volumes=1/slow=false", limit: "limit"},
	{work: "one volume, until it is unmounted and detached", bench: "ManagerUnmount/volumes=1"},
	{work: "1,000 volumes at once", bench: mount1k, limit: "limit", least: 8},
	{work: "the same, processor time per volume", bench: mount1k, metric: "cpu-ns/volume", limit: "limit", least: 2.5},
	{work: "the same, allocations", bench: mount1k, metric: "allocs/op", limit: "limit", least: 2.5},
	{work: "5,000 volumes at once", bench: mount5k, limit: "limit", least: 4},
	{work: "the same, processor time per volume", bench: mount5k, metric: "cpu-ns/volume", limit: "limit", least: 2.5},
	{work: "the same, allocations", bench: mount5k, metric: "allocs/op", limit: "limit", least: 2.5},
	{work: "1,000 at once with a plugin that takes 200 ms, what is added to that", bench: "ManagerMount/volumes=1000/slow=true", metric: "added-ns", limit: "limit"},
	{work: "5,000 at once with that plugin, what is added", bench: "ManagerMount/volumes=5000/slow=true", metric: "added-ns", limit: "limit"},
	{work: "an idle node with 10,000 volumes, processor time in a second", bench: idle10k, metric: "cpu-ns/s", limit: "limit", limited: true, most: 3e6},
	{work: "the same, bytes allocated in a second", bench: idle10k, metric: "alloc-B/s", limit: "limit", limited: true},
	{work: "live heap for each mounted volume", bench: idle10k, metric: "live-B/volume", limit: "limit", limited: true, most: 2000},
	{work: "1,000 real tmpfs volumes mounted and unmounted, records kept, beside the bare calls", bench: "ManagerReal/volumes=1000", against: "limit", least: 0.5},
	{work: "the same, time with 8,000 ÷ time with 1,000", bench: "ManagerReal/volumes=8000", small: "ManagerReal/volumes=1000", flat: 12},
	{work: "attach one volume and detach it, processor time, 100,000 attachments on 5,000 nodes ÷ 1,000 on 50", bench: change100k, metric: "cpu-ns/change", small: change1k, flat: 2},
	{work: "the same, time until the node's status lists it", bench: change100k, metric: "attach-ns", small: change1k, flat: 2},
	{work: "the same, time until the plugin is asked to detach it", bench: change100k, metric: "detach-ns", small: change1k, flat: 2},
	{work: "attach one volume, 10,000 attachments", bench: change10k, metric: "attach-ns", least: 20},
	{work: "detach it", bench: change10k, metric: "detach-ns", least: 20},
	{work: "both, processor time", bench: change10k, metric: "cpu-ns/change", least: 20},
	{work: "an idle cluster with 10,000 attachments, processor time in a second", bench: "AttachIdle/nodes=500/attachments=10000", metric: "cpu-ns/s", least: 100},
	{work: "the same with 100,000", bench: "AttachIdle/nodes=5000/attachments=100000", metric: "cpu-ns/s", least: 100},
	{work: "the same, bytes allocated in a second", bench: "AttachIdle/nodes=5000/attachments=100000", metric: "alloc-B/s", least: 100},
	{work: "10,000 claims bound to 10,000 volumes of mixed sizes and classes, time for each", bench: bind10k, metric: "ns/claim", least: 5},
	{work: "the same, processor time", bench: bind10k, metric: "cpu-ns/claim", least: 5},
	{work: "the same, time for each of 10,000 ÷ of 1,000 (n log n is 1.33)", bench: bind10k, metric: "ns/claim", small: "ClaimsBound/claims=1000", flat: 1.33},
	{work: "the same, of 40,000 ÷ of 1,000 (n log n is 1.53)", bench: "ClaimsBound/claims=40000", metric: "ns/claim", small: "ClaimsBound/claims=1000", flat: 1.53},
	{work: "a claim to a bound volume that was made for it, on etcd: median (bare: one fsync)", bench: "Claim", metric: "p50-ns", limit: "limit", limited: true, most: 10e6},
	{work: "read-only bind mount + unmount of a mount's root, 10 mounts in the table", bench: "BindMount/source=root/mounts=10", limit: "limit", least: 120},
	{work: "the same, 1,000 mounts", bench: "BindMount/source=root/mounts=1000", limit: "limit", least: 120},
	{work: "the same, 5,000 mounts", bench: "BindMount/source=root/mounts=5000", limit: "limit", least: 120},
	{work: "the same, child processes", bench: "BindMount/source=root/mounts=5000", metric: "children/op", limited: true},
	{work: "the same of a plain directory on a filesystem with 5,000 child mounts", bench: "BindMount/source=directory/mounts=5000", limit: "limit", least: 12},
	{work: "is this a mount point, among 5,000", bench: "MountTable/op=IsMountPoint/mounts=5000", limit: "limit", least: 10},
	{work: "source and options of one mount among 10", bench: "MountTable/op=Lookup/mounts=10", limit: "limit"},
	{work: "the same among 1,000", bench: "MountTable/op=Lookup/mounts=1000", limit: "limit"},
	{work: "the same among 5,000", bench: "MountTable/op=Lookup/mounts=5000", limit: "limit", least: 3000},
	{work: "the same, time among 5,000 ÷ time among 10", bench: "MountTable/op=Lookup/mounts=5000", small: "MountTable/op=Lookup/mounts=10", flat: 1.3},
	{work: "list 5,000 mounts, first time", bench: "MountTable/op=List-first/mounts=5000", limit: "limit", least: 1.4},
	{work: "the same, allocations", bench: "MountTable/op=List-first/mounts=5000", metric: "allocs/op", limited: true, most: 20},
	{work: "list 5,000 mounts again, nothing mounted since", bench: "MountTable/op=List-again/mounts=5000", limit: "limit", least: 10_000},
	{work: "references of a mount among 5,000, first time", bench: "MountTable/op=Refs-first/mounts=5000", least: 8},
	{work: "the same again, nothing mounted since", bench: "MountTable/op=Refs-again/mounts=5000", least: 1000},
	{work: "loop attach + detach, no others attached", bench: "Loop/attached=0", limit: "limit", least: 30},
	{work: "the same, 64 others", bench: "Loop/attached=64", limit: "limit", least: 50},
	{work: "the same, 512 others", bench: "Loop/attached=512", limit: "limit", least: 200},
	{work: "the same, time with 512 others ÷ time with none", bench: "Loop/attached=512", small: "Loop/attached=0", flat: 1.3},
	{work: "the same, child processes", bench: "Loop/attached=512", metric: "children/op", limited: true},
	{work: "the first pair of a new `loop.Manager`, 512 others", bench: "LoopFirst/attached=512"},
	{work: "disk usage, 200,000 files with hard links, warm", bench: duWarm, limit: "limit-j2-raw", least: 3},
	{work: "the same, beside du", bench: duWarm, against: "du", limit: "limit-j2-raw", least: 1.7},
	{work: "the same, processor time per file", bench: duWarm, metric: "cpu-ns/file", limit: "limit-j2-raw", least: 1.5},
	{work: "the same, bytes allocated", bench: duWarm, metric: "B/op", limit: "limit-j2-raw", least: 20},
	{work: "the same, allocations", bench: duWarm, metric: "allocs/op", limit: "limit-j2-raw", least: 50},
	{work: "disk usage, 200,000 files with hard links, cold", bench: duCold, limit: "limit-j8", least: 2.3},
	{work: "the same, beside du", bench: duCold, against: "du", limit: "limit-j8", least: 1.6},
	{work: "ownership, 200,000 files, all change", bench: ownFirst, limit: "limit-j4", least: 2.3},
	{work: "the same, processor time per file", bench: ownFirst, metric: "cpu-ns/file", limit: "limit-j4", least: 1.15},
	{work: "ownership, 200,000 files, nothing to change", bench: ownUnchanged, limit: "limit-j4", least: 6},
	{work: "the same, processor time per file", bench: ownUnchanged, metric: "cpu-ns/file", limit: "limit-j4", least: 3},
	{work: "the same, bytes written to disk", bench: "OwnershipWrites/files=200000/state=unchanged", metric: "written-B", limit: "limit-j2", limited: true},
}

const (
	podNames     = "Cache/op=names-of-pod/pods=10000"
	samePod      = "Cache/op=names-of-same-pod/pods=10000"
	podMounts    = "Cache/op=mounted-of-pod/pods=10000"
	addPod       = "Cache/op=AddPodToVolume+Delete/pods=10000"
	markAttached = "Cache/op=MarkVolumeAsAttached+Detached/pods=10000"
	markMounted  = "Cache/op=MarkVolumeAsMounted+Unmounted/pods=10000"
	allToMount   = "Cache/op=all-to-mount/pods=10000"
	allMounted   = "Cache/op=all-mounted/pods=10000"
	wait0        = "ManagerWait/mounted=0"
	wait10k      = "ManagerWait/mounted=10000"
	mount1k      = "ManagerMount/volumes=1000/slow=false"
	mount5k      = "ManagerMount/volumes=5000/slow=false"
	idle10k      = "ManagerIdle/mounted=10000"
	change1k     = "AttachChange/nodes=50/attachments=1000"
	change10k    = "AttachChange/nodes=500/attachments=10000"
	change100k   = "AttachChange/nodes=5000/attachments=100000"
	bind10k      = "ClaimsBound/claims=10000"
	duWarm       = "DiskUsageWarm/tree=nested/files=200000"
	duCold       = "DiskUsageCold/tree=nested/files=200000"
	ownFirst     = "Ownership/tree=nested/files=200000/state=first"
	ownUnchanged = "Ownership/tree=nested/files=200000/state=unchanged"
)
