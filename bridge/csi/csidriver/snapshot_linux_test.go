package csidriver

import (
	"bytes"
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/volumekit/volumekit/bridge/csi/internal/fakedriver"
	"github.com/volumekit/volumekit/volume"
)

func (n *node) trySnapshot(ctx context.Context, name string) (volume.Snapshot, error) {
	return n.plugin.CreateSnapshot(ctx, volume.SnapshotOptions{Name: name, Source: n.spec})
}

func (n *node) snapshot(name string) volume.Snapshot {
	n.t.Helper()
	made, err := n.trySnapshot(n.t.Context(), name)
	require.NoError(n.t, err)
	return made
}

// tryGroup makes a group of the node's volume and others.
func (n *node) tryGroup(name string, others ...*volume.Spec) (volume.GroupSnapshot, error) {
	return n.plugin.CreateGroupSnapshot(n.t.Context(), volume.GroupSnapshotOptions{Name: name, Sources: append(others, n.spec)})
}

// without is the driver with all calls for snapshots but some.
func without(calls ...controllerCall) fakedriver.Options {
	o := fakedriver.Options{}.WithSnapshots()
	var kept []controllerCall
	for _, has := range o.Controller {
		left := false
		for _, c := range calls {
			left = left || c == has
		}
		if !left {
			kept = append(kept, has)
		}
	}
	o.Controller = kept
	return o
}

// A driver that does not say that it makes snapshots, lists them or makes groups is no plugin that does.
func TestADriverWithoutTheCapabilityMakesNoSnapshots(t *testing.T) {
	const all = volume.CapSnapshot | volume.CapListSnapshots | volume.CapGroupSnapshot
	noService := fakedriver.Options{}.WithSnapshots()
	noService.Services = nil
	noCall := fakedriver.Options{}.WithSnapshots()
	noCall.Group = nil
	for name, c := range map[string]struct {
		options fakedriver.Options
		can     volume.Capabilities
	}{
		"all":            {fakedriver.Options{}.WithSnapshots(), all},
		"none":           {fakedriver.Options{}, 0},
		"no snapshots":   {without(csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT), 0},
		"no volumes":     {without(csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME), 0},
		"no list":        {without(csi.ControllerServiceCapability_RPC_LIST_SNAPSHOTS), volume.CapSnapshot | volume.CapGroupSnapshot},
		"no service":     {noService, volume.CapSnapshot | volume.CapListSnapshots},
		"no group calls": {noCall, volume.CapSnapshot | volume.CapListSnapshots},
	} {
		t.Run(name, func(t *testing.T) {
			plugin := serve(t, c.options).driver(t, nil).Plugin()
			assert.Equal(t, c.can, volume.CapabilitiesOf(plugin)&all)
		})
	}
}

// A snapshot that is made after its caller has left is the one that the next call returns. It is made once.
func TestASnapshotThatCameTooLateIsTheSame(t *testing.T) {
	n := newNode(t, fakedriver.Options{}.WithSnapshots(), cutsOffAtOnce)
	n.Plan("CreateSnapshot", fakedriver.Fault{Code: codes.DeadlineExceeded, After: true})
	_, err := n.trySnapshot(t.Context(), "one")
	require.ErrorIs(t, err, volume.ErrUncertain)
	assert.Equal(t, "snap-one", n.snapshot("one").Handle)
	assert.Equal(t, []string{"snap-one"}, n.Snapshots())

	goesOn := make(chan struct{})
	n.Plan("CreateSnapshot", fakedriver.Fault{Hold: goesOn})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { _, err := n.trySnapshot(ctx, "two"); ended <- err }()
	require.Eventually(t, func() bool { return n.Count("CreateSnapshot") == 3 }, time.Minute, time.Millisecond)
	cancel()
	require.ErrorIs(t, <-ended, volume.ErrUncertain)
	close(goesOn)
	require.Eventually(t, func() bool { return len(n.Snapshots()) == 2 }, time.Minute, time.Millisecond)
	n.restartAgent()
	assert.Equal(t, "snap-two", n.snapshot("two").Handle)

	n.Plan("DeleteSnapshot", fakedriver.Fault{Code: codes.Unavailable, After: true})
	require.ErrorIs(t, n.plugin.DeleteSnapshot(t.Context(), "snap-two"), volume.ErrUncertain)
	require.NoError(t, n.plugin.DeleteSnapshot(t.Context(), "snap-two"))
	assert.Equal(t, []string{"snap-one"}, n.Snapshots())
}

// A snapshot that is not one of the volume that was asked for, or not what the specification allows, is no success: it may be there.
func TestASnapshotThatIsNotWhatWasAskedForIsNoSuccess(t *testing.T) {
	for name, change := range map[string]func(*csi.Snapshot){
		"another source":    func(s *csi.Snapshot) { s.SourceVolumeId = "vol-pv-2" },
		"without a source":  func(s *csi.Snapshot) { s.SourceVolumeId = "" },
		"without an id":     func(s *csi.Snapshot) { s.SnapshotId = "" },
		"without a moment":  func(s *csi.Snapshot) { s.CreationTime = nil },
		"impossible moment": func(s *csi.Snapshot) { s.CreationTime = &timestamppb.Timestamp{Nanos: -1} },
		"negative":          func(s *csi.Snapshot) { s.SizeBytes = -1 },
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, fakedriver.Options{}.WithSnapshots(), nil)
			n.Plan("CreateSnapshot", fakedriver.Fault{Change: func(answer proto.Message) { change(answer.(*csi.CreateSnapshotResponse).GetSnapshot()) }})
			_, err := n.trySnapshot(t.Context(), "one")
			require.ErrorIs(t, err, volume.ErrUncertain)
			require.ErrorIs(t, err, volume.ErrInvalid)
		})
	}
	t.Run("made of another volume", func(t *testing.T) {
		n := newNode(t, fakedriver.Options{}.WithSnapshots(), nil)
		n.provision("pv-2", nil)
		n.Plan("CreateSnapshot", fakedriver.Fault{Edit: func(request proto.Message) { request.(*csi.CreateSnapshotRequest).SourceVolumeId = "vol-pv-2" }})
		_, err := n.trySnapshot(t.Context(), "one")
		require.ErrorIs(t, err, volume.ErrUncertain)
		_, err = n.trySnapshot(t.Context(), "one")
		require.ErrorIs(t, err, volume.ErrUncertain)
		var conflict *volume.SnapshotSourceError
		require.ErrorAs(t, err, &conflict, "the driver says then that the name is that of another volume's")
		assert.Equal(t, []string{"vol-pv-1"}, conflict.Wanted)
	})
	t.Run("a volume that was not restored", func(t *testing.T) {
		n := newNode(t, fakedriver.Options{}.WithSnapshots(), nil)
		made := n.snapshot("one")
		provisioner, err := n.plugin.NewProvisioner(volume.VolumeOptions{PVName: "pv-2", PVC: claim(), Snapshot: &made})
		require.NoError(t, err)
		n.Plan("CreateVolume", fakedriver.Fault{Change: func(answer proto.Message) { answer.(*csi.CreateVolumeResponse).GetVolume().ContentSource = nil }})
		_, err = provisioner.Provision(t.Context(), nil, nil)
		require.ErrorIs(t, err, volume.ErrUncertain)
	})
}

// A driver that answers about another snapshot than the one that was asked for does not say that this one is gone, or there.
func TestAnAnswerAboutAnotherSnapshotSaysNothing(t *testing.T) {
	n := newNode(t, fakedriver.Options{}.WithSnapshots(), nil)
	made, other := n.snapshot("one"), n.snapshot("two")
	disbelieved := func(err error) {
		t.Helper()
		require.ErrorIs(t, err, volume.ErrTransient)
		require.ErrorIs(t, err, volume.ErrInvalid)
		require.NotErrorIs(t, err, volume.ErrNotFound)
	}
	n.Plan("GetSnapshot", fakedriver.Fault{Change: func(answer proto.Message) { answer.(*csi.GetSnapshotResponse).GetSnapshot().SnapshotId = other.Handle }})
	_, err := n.plugin.GetSnapshot(t.Context(), made.Handle)
	disbelieved(err)

	n.Update(func(o *fakedriver.Options) {
		o.Controller = without(csi.ControllerServiceCapability_RPC_GET_SNAPSHOT).Controller
	})
	n.restart()
	require.Eventually(t, func() bool { _, err := n.plugin.GetSnapshot(t.Context(), made.Handle); return err == nil }, time.Minute, time.Millisecond)
	n.Plan("ListSnapshots", fakedriver.Fault{Edit: func(request proto.Message) { request.(*csi.ListSnapshotsRequest).SnapshotId = other.Handle }})
	_, err = n.plugin.GetSnapshot(t.Context(), made.Handle)
	disbelieved(err)
	n.Plan("ListSnapshots", fakedriver.Fault{Change: func(answer proto.Message) {
		answer.(*csi.ListSnapshotsResponse).Entries, answer.(*csi.ListSnapshotsResponse).NextToken = nil, "2"
	}})
	_, err = n.plugin.GetSnapshot(t.Context(), made.Handle)
	disbelieved(err)
}

// A snapshot that never becomes ready delays no caller: each call returns the driver's answer at once.
func TestASnapshotThatIsNeverReadyDelaysNoCaller(t *testing.T) {
	options := fakedriver.Options{}.WithSnapshots()
	options.NeverReady = true
	n := newNode(t, options, nil)
	made := n.snapshot("one")
	assert.False(t, made.ReadyToUse)
	found, err := n.plugin.GetSnapshot(t.Context(), made.Handle)
	require.NoError(t, err)
	assert.Equal(t, made, found)
	assert.Equal(t, 1, n.Count("CreateSnapshot"))
	assert.Equal(t, 1, n.Count("GetSnapshot"))
	group, err := n.tryGroup("two")
	require.NoError(t, err)
	assert.False(t, group.ReadyToUse)

	n.Plan("GetVolumeGroupSnapshot", fakedriver.Fault{Change: func(answer proto.Message) {
		answer.(*csi.GetVolumeGroupSnapshotResponse).GetGroupSnapshot().ReadyToUse = true
	}})
	group, err = n.plugin.GetGroupSnapshot(t.Context(), group.Handle, nil)
	require.NoError(t, err)
	assert.False(t, group.ReadyToUse, "a group is ready when all of its snapshots are")
}

// A snapshot is looked up by the call that the driver has for it; without one the caller has to make it again.
func TestASnapshotIsLookedUpByWhatTheDriverHas(t *testing.T) {
	for name, c := range map[string]struct {
		without []controllerCall
		by      string
	}{
		"a call of its own": {nil, "GetSnapshot"},
		"the list":          {[]controllerCall{csi.ControllerServiceCapability_RPC_GET_SNAPSHOT}, "ListSnapshots"},
		"nothing":           {[]controllerCall{csi.ControllerServiceCapability_RPC_GET_SNAPSHOT, csi.ControllerServiceCapability_RPC_LIST_SNAPSHOTS}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, without(c.without...), nil)
			made := n.snapshot("one")
			found, err := n.plugin.GetSnapshot(t.Context(), made.Handle)
			if c.by == "" {
				require.ErrorIs(t, err, volume.ErrUnsupported)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, made, found)
			assert.Equal(t, 1, n.Count(c.by))
			_, err = n.plugin.GetSnapshot(t.Context(), "snap-none")
			require.ErrorIs(t, err, volume.ErrNotFound)
		})
	}
}

// A list is read to its end, again from its beginning where the driver says so, and is an error where it has no end.
func TestAllSnapshotsAreListedOrNone(t *testing.T) {
	n := newNode(t, fakedriver.Options{}.WithSnapshots(), nil)
	for _, name := range []string{"one", "two", "three", "four", "five"} {
		n.snapshot(name)
	}
	list := func() ([]volume.Snapshot, error) { return n.plugin.ListSnapshots(t.Context()) }
	all, err := list()
	require.NoError(t, err)
	assert.Len(t, all, 5)
	n.Plan("ListSnapshots", fakedriver.Fault{}, fakedriver.Fault{Code: codes.Aborted})
	all, err = list()
	require.NoError(t, err)
	assert.Len(t, all, 5)
	for name, fault := range map[string]fakedriver.Fault{
		"no end":      {Always: true, Change: func(answer proto.Message) { answer.(*csi.ListSnapshotsResponse).NextToken = "0" }},
		"always anew": {Always: true, Code: codes.Aborted},
		"no answer":   {Code: codes.Internal},
		"one that isn't": {Change: func(answer proto.Message) {
			answer.(*csi.ListSnapshotsResponse).GetEntries()[0].GetSnapshot().SnapshotId = ""
		}},
	} {
		n.Plan("ListSnapshots", fault)
		all, err = list()
		require.Error(t, err, name)
		assert.Empty(t, all, name)
		n.RemoveFaults()
	}
}

// A group has a snapshot of each volume that was asked for, or it is no success. What is deleted and looked up is that group and no other.
func TestAGroupIsWhatWasAskedFor(t *testing.T) {
	n := newNode(t, fakedriver.Options{}.WithSnapshots(), nil)
	other := n.provision("pv-2", nil)
	group, err := n.tryGroup("one", other)
	require.NoError(t, err)
	require.Len(t, group.Snapshots, 2)
	for name, change := range map[string]func(*csi.VolumeGroupSnapshot){
		"one is missing":     func(g *csi.VolumeGroupSnapshot) { g.Snapshots = g.GetSnapshots()[1:] },
		"one is there twice": func(g *csi.VolumeGroupSnapshot) { g.Snapshots[0] = g.GetSnapshots()[1] },
		"of another group":   func(g *csi.VolumeGroupSnapshot) { g.Snapshots[0].GroupSnapshotId = "group-two" },
		"of no group":        func(g *csi.VolumeGroupSnapshot) { g.Snapshots[0].GroupSnapshotId = "" },
		"without an id":      func(g *csi.VolumeGroupSnapshot) { g.GroupSnapshotId = "" },
		"without a moment":   func(g *csi.VolumeGroupSnapshot) { g.CreationTime = nil },
	} {
		n.Plan("CreateVolumeGroupSnapshot", fakedriver.Fault{Change: func(answer proto.Message) {
			change(answer.(*csi.CreateVolumeGroupSnapshotResponse).GetGroupSnapshot())
		}})
		_, err := n.tryGroup("one", other)
		require.ErrorIs(t, err, volume.ErrUncertain, name)
		n.Plan("GetVolumeGroupSnapshot", fakedriver.Fault{Change: func(answer proto.Message) {
			change(answer.(*csi.GetVolumeGroupSnapshotResponse).GetGroupSnapshot())
		}})
		_, err = n.plugin.GetGroupSnapshot(t.Context(), group.Handle, handlesOf(group))
		require.ErrorIs(t, err, volume.ErrTransient, name)
	}
	again, err := n.tryGroup("one", other)
	require.NoError(t, err)
	assert.Equal(t, group, again)
	_, err = n.tryGroup("one")
	var conflict *volume.SnapshotSourceError
	require.ErrorAs(t, err, &conflict)
	_, err = n.tryGroup("two", n.spec)
	require.ErrorIs(t, err, volume.ErrInvalid, "a volume is named once")

	require.ErrorIs(t, n.plugin.DeleteSnapshot(t.Context(), group.Snapshots[0].Handle), volume.ErrInfeasible)
	require.ErrorIs(t, n.plugin.DeleteGroupSnapshot(t.Context(), group.Handle, []string{"snap-none"}), volume.ErrInvalid)
	require.NoError(t, n.plugin.DeleteGroupSnapshot(t.Context(), group.Handle, handlesOf(group)))
	_, err = n.plugin.GetGroupSnapshot(t.Context(), group.Handle, nil)
	require.ErrorIs(t, err, volume.ErrNotFound)
	assert.Empty(t, n.Snapshots())
}

// A driver's word that a source is gone, or that a name is taken, says nothing of an earlier call.
func TestARefusedSnapshotMayBeThere(t *testing.T) {
	n := newNode(t, fakedriver.Options{}.WithSnapshots(), nil)
	var conflict *volume.SnapshotSourceError
	for code, check := range map[codes.Code]func(error){
		codes.NotFound:           func(err error) { require.ErrorIs(t, err, volume.ErrNotFound) },
		codes.AlreadyExists:      func(err error) { require.ErrorAs(t, err, &conflict) },
		codes.FailedPrecondition: func(err error) { require.ErrorIs(t, err, volume.ErrInUse) },
		codes.ResourceExhausted:  func(error) {},
		codes.Internal:           func(error) {},
	} {
		n.Plan("CreateSnapshot", fakedriver.Fault{Code: code})
		_, err := n.trySnapshot(t.Context(), "one")
		require.ErrorIs(t, err, volume.ErrUncertain, code)
		check(err)
	}
	for code, is := range map[codes.Code]error{codes.FailedPrecondition: volume.ErrInUse, codes.InvalidArgument: volume.ErrInfeasible} {
		n.Plan("DeleteSnapshot", fakedriver.Fault{Code: code})
		err := n.plugin.DeleteSnapshot(t.Context(), "snap-one")
		require.ErrorIs(t, err, is)
		require.NotErrorIs(t, err, volume.ErrUncertain)
	}
	n.Plan("CreateSnapshot", fakedriver.Fault{Code: codes.Aborted})
	n.snapshot("one") // A busy driver is asked again.
}

// A volume is not restored smaller than its snapshot, and the driver is not asked for it.
func TestAVolumeSmallerThanItsSnapshotIsNotRestored(t *testing.T) {
	n := newNode(t, fakedriver.Options{}.WithSnapshots(), nil)
	made := n.snapshot("one")
	made.RestoreSize = resource.NewScaledQuantity(1, resource.Giga).Value()
	calls := n.Count("CreateVolume")
	provisioner, err := n.plugin.NewProvisioner(volume.VolumeOptions{PVName: "pv-2", PVC: claim(), Snapshot: &made})
	require.NoError(t, err)
	_, err = provisioner.Provision(t.Context(), nil, nil)
	var small *volume.RestoreSizeError
	require.ErrorAs(t, err, &small)
	assert.Equal(t, calls, n.Count("CreateVolume"))
}

// Secrets of snapshots are asked for at each call, by the parameters of the class or by its handle, and reach the driver alone.
func TestSecretsOfSnapshotsAreNowhereButInCalls(t *testing.T) {
	known, parameters := secrets{}, map[string]string{fakedriver.Parameter: "blue"}
	for _, purpose := range []string{snapshotterSecret, snapshotterListSecret, groupSnapshotterSecret, groupSnapshotterGetSecret} {
		parameters[parameterPrefix+purpose+secretNameEnd] = "for-" + purpose
		parameters[parameterPrefix+purpose+secretSpaceEnd] = "space"
		known["space/for-"+purpose] = "hunter2-of-" + purpose
	}
	class, err := SnapshotClassSecrets(parameters)
	require.NoError(t, err)
	var log bytes.Buffer
	n := newNode(t, fakedriver.Options{}.WithSnapshots(), func(o *Options) {
		o.Secrets, o.SnapshotSecrets, o.Logger = known, class, slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	for method, c := range map[string]struct {
		purpose string
		call    func() error
	}{
		"CreateSnapshot": {snapshotterSecret, func() error {
			_, err := n.plugin.CreateSnapshot(t.Context(), volume.SnapshotOptions{Name: "one", Source: n.spec, Parameters: parameters})
			return err
		}},
		"GetSnapshot":    {snapshotterListSecret, func() error { _, err := n.plugin.GetSnapshot(t.Context(), "snap-one"); return err }},
		"ListSnapshots":  {snapshotterListSecret, func() error { _, err := n.plugin.ListSnapshots(t.Context()); return err }},
		"DeleteSnapshot": {snapshotterSecret, func() error { return n.plugin.DeleteSnapshot(t.Context(), "snap-one") }},
		"CreateVolumeGroupSnapshot": {groupSnapshotterSecret, func() error {
			_, err := n.plugin.CreateGroupSnapshot(t.Context(), volume.GroupSnapshotOptions{Name: "one", Sources: []*volume.Spec{n.spec}, Parameters: parameters})
			return err
		}},
		"GetVolumeGroupSnapshot":    {groupSnapshotterGetSecret, func() error { _, err := n.plugin.GetGroupSnapshot(t.Context(), "group-one", nil); return err }},
		"DeleteVolumeGroupSnapshot": {groupSnapshotterSecret, func() error { return n.plugin.DeleteGroupSnapshot(t.Context(), "group-one", nil) }},
	} {
		n.Plan(method, fakedriver.Fault{Code: codes.Internal, Message: "the secret is hunter2-of-" + c.purpose})
		err := c.call()
		require.Error(t, err, method)
		assert.NotContains(t, err.Error(), "hunter2", method)
		request, ok := n.Last(method).(interface{ GetSecrets() map[string]string })
		require.True(t, ok, method)
		assert.Equal(t, map[string]string{"key": "hunter2-of-" + c.purpose}, request.GetSecrets(), method)
	}
	assert.Equal(t, map[string]string{fakedriver.Parameter: "blue"}, n.Last("CreateSnapshot").(*csi.CreateSnapshotRequest).GetParameters())
	assert.NotContains(t, log.String(), "hunter2")
	assert.Contains(t, log.String(), "CreateSnapshot")

	delete(known, "space/for-"+snapshotterSecret)
	calls := n.Count("DeleteSnapshot")
	require.ErrorIs(t, n.plugin.DeleteSnapshot(t.Context(), "snap-one"), volume.ErrTransient)
	assert.Equal(t, calls, n.Count("DeleteSnapshot"), "a secret that is missing begins nothing")
}

// The names of objects that the caller gives are used for the secret's name, and the driver gets them. The author of a snapshot does not
// choose the namespace of a secret.
func TestClassParametersOfSnapshots(t *testing.T) {
	name, space := parameterPrefix+snapshotterSecret+secretNameEnd, parameterPrefix+snapshotterSecret+secretSpaceEnd
	told := map[string]string{
		parameterPrefix + "volumesnapshot/name": "snap", parameterPrefix + "volumesnapshot/namespace": "space", parameterPrefix + "volumesnapshotcontent/name": "content",
	}
	split, err := splitSnapshotParameters(map[string]string{
		name: "${volumesnapshot.name}-${volumesnapshotcontent.name}", space: "${volumesnapshot.namespace}", "own": "x",
		parameterPrefix + "volumesnapshot/name": "snap", parameterPrefix + "volumesnapshot/namespace": "space", parameterPrefix + "volumesnapshotcontent/name": "content",
	})
	require.NoError(t, err)
	assert.Equal(t, "snap-content", split.refs[snapshotterSecret].Name)
	assert.Equal(t, "space", split.refs[snapshotterSecret].Namespace)
	told["own"] = "x"
	assert.Equal(t, told, split.own)
	for what, wrong := range map[string]map[string]string{
		"not known":           {parameterPrefix + "colour": "blue"},
		"of volumes":          {parameterPrefix + provisionerSecret + secretNameEnd: "a", parameterPrefix + provisionerSecret + secretSpaceEnd: "b"},
		"a name alone":        {name: "a"},
		"a namespace alone":   {space: "a"},
		"empty":               {name: "", space: "a"},
		"nothing is known":    {name: "${volumesnapshot.name}", space: "a"},
		"chosen by the claim": {name: "a", space: "${volumesnapshot.name}", parameterPrefix + "volumesnapshot/name": "snap"},
		"no such template":    {name: "${pvc.name}", space: "a"},
	} {
		_, err := splitSnapshotParameters(wrong)
		require.ErrorIs(t, err, volume.ErrInvalid, what)
		_, err = SnapshotClassSecrets(wrong)
		require.ErrorIs(t, err, volume.ErrInvalid, what)
	}
}
