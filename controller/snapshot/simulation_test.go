package snapshot

import (
	"context"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/fake"
)

// This file has the events of the simulation of snapshots, and the rules that must hold at all times and at the end.

var (
	simSources   = []string{"c-1", "c-2"}
	simSnapshots = []string{"s-1", "s-2", "s-3"}
	simRestored  = []string{"r-1", "r-2"}
)

// simulateSnapshots runs a world for a number of steps, and returns it with the violated rules.
func simulateSnapshots(t *testing.T, seed uint64, steps int, planted simBug) (s *sim) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s = newSim(t, seed, planted)
		ctx := t.Context()
		s.make(ctx, &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "fast"}, Provisioner: fake.DefaultPluginName})
		s.make(ctx, newClass("x"))
		s.make(ctx, newClass("keep", retains))
		s.make(ctx, newGroupClass("x"))
		processes := []*simProcess{{sim: s, name: "a"}, {sim: s, name: "b"}}
		for _, p := range processes {
			p.start(t)
		}
		for i := 0; i < steps && s.isWhole(); i++ {
			s.step(ctx, t, processes[s.luck(2)])
			s.turns.Sleep(time.Duration(s.luck(2000)) * time.Millisecond)
			s.check(ctx)
		}
		if s.isWhole() {
			s.settle(ctx, processes)
		}
		for _, p := range processes {
			p.stop()
		}
	})
	return s
}

// step makes one random event happen.
func (s *sim) step(ctx context.Context, t *testing.T, p *simProcess) {
	t.Helper()
	name := simSnapshots[s.luck(len(simSnapshots))]
	switch luck := s.luck(100); {
	case luck < 15:
		s.make(ctx, simClaim(simSources[s.luck(len(simSources))], ""))
	case luck < 18:
		s.remove(ctx, simClaim(simSources[s.luck(len(simSources))], ""))
	case luck < 40:
		s.write()
	case luck < 55:
		s.make(ctx, simSnapshot(name, simSources[s.luck(len(simSources))], []string{"x", "x", "keep"}[s.luck(3)]))
	case luck < 65:
		s.remove(ctx, simSnapshot(name, "", ""))
	case luck < 75:
		s.make(ctx, simClaim(simRestored[s.luck(len(simRestored))], name))
	case luck < 80:
		s.remove(ctx, simClaim(simRestored[s.luck(len(simRestored))], ""))
	case luck < 82:
		p.kill()
		p.start(t)
	case luck < 84:
		p.link.cutOff(true)
	case luck < 86:
		s.make(ctx, simGroup())
	case luck < 88:
		s.remove(ctx, simGroup())
	case luck < 91:
		s.removeGroupContent(ctx)
	case luck < 94:
		p.link.cutOff(false)
	default:
		s.makeReady()
	}
}

// removeGroupContent deletes the content of a group by hand.
func (s *sim) removeGroupContent(ctx context.Context) {
	contents := simAll[*groupv1.VolumeGroupSnapshotContent](ctx, s)
	if len(contents) == 0 {
		return
	}
	s.remove(ctx, contents[s.luck(len(contents))])
	s.count("content deleted by hand")
}

func simSnapshot(name, claim, class string) *snapshotv1.VolumeSnapshot {
	snap := newSnapshot(name, claim, class)
	snap.UID = ""
	return snap
}

// simGroup returns the group of all sources.
func simGroup() *groupv1.VolumeGroupSnapshot {
	group := newGroup("g", "x")
	group.UID = ""
	return group
}

// simClaim returns a claim. It is restored from the snapshot snap, unless that is empty.
func simClaim(name, snap string) *v1.PersistentVolumeClaim {
	class := "fast"
	claim := &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: v1.PersistentVolumeClaimSpec{
			StorageClassName: &class, AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
			Resources: v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}},
		},
	}
	if snap == "" {
		labelled(claim)
	} else {
		claim.Spec.DataSource = &v1.TypedLocalObjectReference{APIGroup: new(snapshotv1.GroupName), Kind: "VolumeSnapshot", Name: snap}
	}
	return claim
}

// check checks the rules that hold at all times.
func (s *sim) check(ctx context.Context) {
	for _, snap := range simAll[*snapshotv1.VolumeSnapshot](ctx, s) {
		content := s.contentOf(ctx, snap)
		if snap.DeletionTimestamp != nil || content == nil || handleOf(content) == "" {
			continue
		}
		if isMember(content) {
			continue
		}
		s.checkSnapshot(snap, content)
	}
	for _, group := range simAll[*groupv1.VolumeGroupSnapshot](ctx, s) {
		if content := s.contentOfGroup(ctx, group); content != nil && group.DeletionTimestamp == nil && isGroupReady(content) {
			s.checkGroup(group, content)
		}
	}
	for _, claim := range simAll[*v1.PersistentVolumeClaim](ctx, s) {
		if claim.Status.Phase == v1.ClaimBound && claim.Spec.DataSource != nil {
			s.checkRestored(claim)
		}
	}
}

// checkSnapshot checks the data of a snapshot: it has everything that was synced before the VolumeSnapshot was created, nothing that
// was synced after the snapshot was made, and never changes once it is ready.
func (s *sim) checkSnapshot(snap *snapshotv1.VolumeSnapshot, content *snapshotv1.VolumeSnapshotContent) {
	handle := handleOf(content)
	s.mu.Lock()
	has, there := s.taken[handle]
	source := s.sources[handle]
	asked, claim := s.asked[snap.UID][source], s.claimOf[source]
	if _, seen := s.made[snap.UID]; !seen {
		s.made[snap.UID] = s.synced[source]
	}
	made := s.made[snap.UID]
	ready, known := s.ready[snap.UID]
	isReady := deref(snap.Status.ReadyToUse)
	if isReady && !known {
		s.ready[snap.UID] = has
	}
	s.mu.Unlock()
	switch {
	case !there:
		s.violate("snapshot %s is bound to %s, which is not in the storage", snap.Name, handle)
	case claim != deref(snap.Spec.Source.PersistentVolumeClaimName):
		s.violate("snapshot %s is one of the volume of claim %s", snap.Name, claim)
	case has < asked:
		s.violate("snapshot %s holds %d of %s, and %d was synced before it was asked for", snap.Name, has, source, asked)
	case has > made && s.synced[source] != 0:
		s.violate("snapshot %s holds %d of %s, and %d was synced when it was made", snap.Name, has, source, made)
	case known && has != ready:
		s.violate("snapshot %s holds %d, and held %d when it was ready", snap.Name, has, ready)
	case isReady:
		s.count("ready")
	}
}

// checkGroup checks that the storage has all snapshots of a group, and that they are of the same moment.
func (s *sim) checkGroup(group *groupv1.VolumeGroupSnapshot, content *groupv1.VolumeGroupSnapshotContent) {
	members := memberHandlesOf(content)
	if len(members) != len(content.Spec.Source.VolumeHandles) {
		s.violate("group %s has %d snapshots of %d volumes", group.Name, len(members), len(content.Spec.Source.VolumeHandles))
	}
	for _, handle := range members {
		s.mu.Lock()
		_, there := s.taken[handle]
		moment, first := s.moments[handle], s.moments[members[0]]
		s.mu.Unlock()
		switch {
		case !there:
			s.violate("snapshot %s of group %s is not in the storage", handle, group.Name)
		case moment != first:
			s.violate("group %s has snapshots of the moments %d and %d", group.Name, first, moment)
		}
	}
	s.count("group ready")
}

// checkRestored checks that a restored volume was made from the snapshot that its claim names.
func (s *sim) checkRestored(claim *v1.PersistentVolumeClaim) {
	s.mu.Lock()
	from := s.restoredFrom[claim.Spec.VolumeName]
	name := s.nameOf[types.UID(strings.TrimPrefix(from, "snapshot-"))]
	s.mu.Unlock()
	if from == "" || name != claim.Spec.DataSource.Name {
		s.violate("claim %s is restored from %q of snapshot %q, and names %s", claim.Name, from, name, claim.Spec.DataSource.Name)
	}
}

// settle stops the faults, and checks that all objects reach their final state.
func (s *sim) settle(ctx context.Context, processes []*simProcess) {
	s.mu.Lock()
	s.calm = true
	s.mu.Unlock()
	s.note("the faults stop")
	for _, p := range processes {
		p.link.Mend()
		p.link.cutOff(false)
	}
	var wrong []string
	for good, rounds := 0, 0; good < 3 && rounds < 100 && s.isWhole(); rounds++ {
		s.makeReady()
		s.turns.Sleep(2 * time.Second)
		s.check(ctx)
		if wrong = s.unsettled(ctx); len(wrong) == 0 {
			good++
		} else {
			good = 0
		}
	}
	for _, what := range wrong {
		s.violate("in the end %s", what)
	}
}

func (s *sim) claims(ctx context.Context) map[string]*v1.PersistentVolumeClaim {
	claims := map[string]*v1.PersistentVolumeClaim{}
	for _, claim := range simAll[*v1.PersistentVolumeClaim](ctx, s) {
		claims[claim.Name] = claim
	}
	return claims
}

// unsettled returns the objects that have not reached their final state.
func (s *sim) unsettled(ctx context.Context) (wrong []string) {
	claims, known := s.claims(ctx), map[string]bool{}
	for _, content := range simAll[*snapshotv1.VolumeSnapshotContent](ctx, s) {
		known[handleOf(content)] = true
		if content.DeletionTimestamp != nil {
			wrong = append(wrong, "content "+content.Name+" stays")
		}
	}
	held := map[string]bool{} // contents whose group exists
	for _, group := range simAll[*groupv1.VolumeGroupSnapshot](ctx, s) {
		held[groupBoundTo(group)] = true
	}
	var begun []*groupv1.VolumeGroupSnapshotContent
	for _, content := range simAll[*groupv1.VolumeGroupSnapshotContent](ctx, s) {
		for _, handle := range memberHandlesOf(content) {
			known[handle] = true
		}
		if content.DeletionTimestamp != nil && held[content.Name] && isMarked(content, AnnGroupBeingCreated) {
			begun = append(begun, content)
		}
		if content.DeletionTimestamp != nil && !held[content.Name] {
			wrong = append(wrong, "content "+content.Name+" of a group stays")
		}
	}
	members := map[types.UID]int{}
	for _, snap := range simAll[*snapshotv1.VolumeSnapshot](ctx, s) {
		members[groupOwner(snap).UID]++
	}
	for _, group := range simAll[*groupv1.VolumeGroupSnapshot](ctx, s) {
		content := s.contentOfGroup(ctx, group)
		switch {
		case group.DeletionTimestamp != nil:
			wrong = append(wrong, "group "+group.Name+" stays")
		case content != nil && content.DeletionTimestamp != nil:
			// The content was deleted by hand: it makes no more snapshots, and stays until the group is deleted.
		case content != nil && !isGroupReady(content):
			wrong = append(wrong, "group "+group.Name+" is not ready")
		case content != nil && members[group.UID] != len(memberHandlesOf(content)):
			wrong = append(wrong, "group "+group.Name+" lacks a VolumeSnapshot")
		}
	}
	for _, snap := range simAll[*snapshotv1.VolumeSnapshot](ctx, s) {
		isReady := snap.Status != nil && deref(snap.Status.ReadyToUse)
		source := claims[deref(snap.Spec.Source.PersistentVolumeClaimName)]
		switch {
		case snap.DeletionTimestamp != nil:
			wrong = append(wrong, "snapshot "+snap.Name+" stays")
		case !isReady && source != nil && source.Status.Phase == v1.ClaimBound && source.DeletionTimestamp == nil:
			wrong = append(wrong, "snapshot "+snap.Name+" is not ready")
		case isReady:
			for _, name := range unrestored(snap, claims) {
				wrong = append(wrong, "claim "+name+" is not restored")
			}
		}
	}
	// A content that was deleted by hand during the call for its snapshots gets their handles only when the group is deleted. Its
	// claims stay until then, too.
	for _, snap := range s.backend.Snapshots() {
		isBegun := slices.ContainsFunc(begun, func(content *groupv1.VolumeGroupSnapshotContent) bool {
			return strings.HasPrefix(snap.Handle, pluginGroupName(content.Spec.VolumeGroupSnapshotRef.UID)+"/")
		})
		if !known[snap.Handle] && !isBegun {
			wrong = append(wrong, "snapshot "+snap.Handle+" in the storage has no content")
		}
	}
	for _, claim := range claims {
		isBegun := slices.ContainsFunc(begun, func(content *groupv1.VolumeGroupSnapshotContent) bool {
			return slices.Contains(sourceVolumes(content), claim.Spec.VolumeName)
		})
		if claim.DeletionTimestamp != nil && !isBegun {
			wrong = append(wrong, "claim "+claim.Name+" stays")
		}
	}
	slices.Sort(wrong)
	return wrong
}

// unrestored returns the names of the claims that are to be restored from a snapshot and are not bound.
func unrestored(snap *snapshotv1.VolumeSnapshot, claims map[string]*v1.PersistentVolumeClaim) (names []string) {
	for _, claim := range claims {
		if source := claim.Spec.DataSource; source != nil && source.Name == snap.Name && claim.Status.Phase != v1.ClaimBound {
			names = append(names, claim.Name)
		}
	}
	slices.Sort(names)
	return names
}

// plantedBugs are plausible mistakes of a storage or of the controllers.
var plantedBugs = map[string]simBug{
	"storage fixes the content after its answer": {finds: "was synced when it was made", late: true},
	"a snapshot is named after its name, not its UID": {finds: "was synced before it was asked for", rename: func(s *sim, name string) string {
		s.mu.Lock()
		defer s.mu.Unlock()
		return "snapshot-" + s.nameOf[types.UID(strings.TrimPrefix(name, "snapshot-"))]
	}},
	"a snapshot counts as deleted that is not": {finds: "is deleted, and", read: func(s *sim, obj runtime.Object) runtime.Object {
		if snap, is := obj.(*snapshotv1.VolumeSnapshot); is && boundTo(snap) != "" && s.luck(6) == 0 {
			snap.DeletionTimestamp = new(metav1.Now())
		}
		return obj
	}},
	"the snapshots of a group are made one after the other": {finds: "has snapshots of the moments", apart: true},
	"a group counts as deleted that is not": {finds: "is deleted in the storage", read: func(s *sim, obj runtime.Object) runtime.Object {
		if group, is := obj.(*groupv1.VolumeGroupSnapshot); is && groupBoundTo(group) != "" && s.luck(6) == 0 {
			group.DeletionTimestamp = new(metav1.Now())
		}
		return obj
	}},
	"a group is not found that exists": {finds: "is deleted in the storage", read: func(s *sim, obj runtime.Object) runtime.Object {
		if _, is := obj.(*groupv1.VolumeGroupSnapshot); is && s.luck(3) == 0 {
			return nil
		}
		return obj
	}},
	"a claim is restored from the snapshot of another": {finds: "is restored from", swap: true},
}

// Processes, networks and storage fail. A snapshot has everything that was synced before its VolumeSnapshot was created, and nothing
// that was synced after it was made. All snapshots of a group are of the same moment. A snapshot or a group is deleted only with its
// object. A volume is restored from the snapshot that its claim names. When the faults stop, all objects reach their final state.
func TestSnapshotsStayWhole(t *testing.T) {
	first, seeds := simNumber(t, "SNAPSHOT_FIRST", 0), simNumber(t, "SNAPSHOT_SEEDS", 10)
	counts := map[string]int{}
	for seed := first; seed < first+seeds; seed++ {
		s := simulateSnapshots(t, seed, 200, simBug{})
		for what, n := range s.counts {
			counts[what] += n
		}
		if len(s.violations) == 0 {
			continue
		}
		lines := s.trace
		if seeds == 1 {
			lines = s.steps.Lines() // with each turn of the scheduler
		}
		t.Log(strings.Join(lines, "\n"))
		require.Empty(t, s.violations, "seed %d: SNAPSHOT_FIRST=%d SNAPSHOT_SEEDS=1 repeats it, and prints each turn", seed, seed)
	}
	t.Logf("%d seeds: %v", seeds, counts)
	for _, what := range []string{"snapshot", "ready", "restored", "deleted", "group ready", "group deleted", "content deleted by hand"} {
		assert.NotZero(t, counts[what], "a simulation in which there is no %q shows nothing of it", what)
	}
}

// The simulation finds each planted bug within 200 seeds. The same seed gives the same run.
func TestTheSimulationOfSnapshotsFindsBugs(t *testing.T) {
	for _, name := range slices.Sorted(maps.Keys(plantedBugs)) {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(200) {
				found := simulateSnapshots(t, seed, 200, plantedBugs[name])
				if !found.says(plantedBugs[name].finds) {
					continue
				}
				t.Logf("seed %d: %s", seed, found.violations[0])
				again := simulateSnapshots(t, seed, 200, plantedBugs[name])
				require.Equal(t, found.steps.Lines(), again.steps.Lines(), "seed %d finds it again", seed)
				return
			}
			t.Error("nothing was found")
		})
	}
}

func simNumber(t *testing.T, name string, without uint64) uint64 {
	t.Helper()
	if os.Getenv(name) == "" {
		return without
	}
	n, err := strconv.ParseUint(os.Getenv(name), 10, 64)
	require.NoError(t, err, name)
	return n
}
