package operationexecutor_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

const (
	modifyPending    = v1.PersistentVolumeClaimModifyVolumePending
	modifyInProgress = v1.PersistentVolumeClaimModifyVolumeInProgress
	modifyInfeasible = v1.PersistentVolumeClaimModifyVolumeInfeasible
)

// attributes are the classes, and write into the claim of claimStatus.
type attributes struct {
	*claimStatus
	classes map[string]*storagev1.VolumeAttributesClass
}

func (a *attributes) AttributesClass(_ context.Context, name string) (*storagev1.VolumeAttributesClass, error) {
	if class, ok := a.classes[name]; ok {
		return class, nil
	}
	return nil, fmt.Errorf("class %q: %w", name, volume.ErrNotFound)
}

func (a *attributes) SetModification(_ context.Context, claim *v1.PersistentVolumeClaim, m operationexecutor.Modification) (*v1.PersistentVolumeClaim, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	line := string(m.Status) + " " + m.Class
	if m.Err != nil {
		line += " failed"
	}
	if err := a.wrote(line); err != nil {
		return nil, err
	}
	if claim.ResourceVersion != a.claim.ResourceVersion {
		return nil, fmt.Errorf("version %s is not %s", claim.ResourceVersion, a.claim.ResourceVersion)
	}
	a.claim = m.Apply(claim)
	version, _ := strconv.Atoi(claim.ResourceVersion)
	a.claim.ResourceVersion = strconv.Itoa(version + 1)
	return a.claim.DeepCopy(), nil
}

func (a *attributes) SetAttributesClass(_ context.Context, pv *v1.PersistentVolume, class string) (*v1.PersistentVolume, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.wrote("volume " + class); err != nil {
		return nil, err
	}
	a.volume = pv.DeepCopy()
	a.volume.Spec.VolumeAttributesClassName = &class
	return a.volume, nil
}

func attributesClass(name, driver string) *storagev1.VolumeAttributesClass {
	return &storagev1.VolumeAttributesClass{
		ObjectMeta: metav1.ObjectMeta{Name: name}, DriverName: driver, Parameters: map[string]string{"tier": name, "token": "s3cr3t-word"},
	}
}

// naming returns a claim that names one class and has another.
func naming(wanted, current string) *v1.PersistentVolumeClaim {
	claim := claimOf("data", "10Gi", "10Gi")
	if wanted != "" {
		claim.Spec.VolumeAttributesClassName = &wanted
	}
	if current != "" {
		claim.Status.CurrentVolumeAttributesClassName = &current
	}
	return claim
}

// modifyWorld is a world whose plugin modifies, with one claim, the classes slow, fast and gold, and one of another driver.
func modifyWorld(t *testing.T, claims *claimStatus) (*world, *attributes) {
	a := &attributes{claimStatus: claims, classes: map[string]*storagev1.VolumeAttributesClass{}}
	for _, name := range []string{"slow", "fast", "gold"} {
		a.classes[name] = attributesClass(name, pluginName)
	}
	a.classes["other"] = attributesClass("other", "other.example.com")
	return newWorld(t, setup{
		attachable: true, stageable: true, abilities: volume.CapModify,
		generator: func(o *operationexecutor.GeneratorOptions) { o.Claims, o.Attributes = claims, a },
	}), a
}

func (w *world) modify(s *volume.Spec) (*operationexecutor.Operation, error) {
	return w.executor.ModifyVolume(w.t.Context(), operationexecutor.VolumeToModify{VolumeName: volumeName("data"), VolumeSpec: s})
}

// of returns a volume that has a class.
func of(class string) *volume.Spec {
	s := claimedSpec("data", "10Gi")
	if class != "" {
		s.PersistentVolume.Spec.VolumeAttributesClassName = &class
	}
	return s
}

// TestTheControlPlaneModifiesAndRecovers is the table of the class that a claim names, the one that it has, how far its
// modification came, and what is done: the class that the plugin is called with ("": it is not), and what is written.
func TestTheControlPlaneModifiesAndRecovers(t *testing.T) {
	for name, test := range map[string]struct {
		wanted, has, volume string
		status              v1.PersistentVolumeClaimModifyVolumeStatus
		target, reason      string
		call                string
		written             []string
	}{
		"no class is named":           {},
		"the class is the volume's":   {wanted: "slow", has: "slow", volume: "slow"},
		"none is named any more":      {has: "slow", volume: "slow"},
		"a first class":               {wanted: "fast", call: "fast", written: []string{"InProgress fast", "volume fast", " fast"}},
		"another class":               {wanted: "fast", has: "slow", volume: "slow", call: "fast", written: []string{"InProgress fast", "volume fast", " fast"}},
		"the process died in between": {wanted: "fast", has: "slow", volume: "slow", status: modifyInProgress, target: "fast", call: "fast", written: []string{"InProgress fast", "volume fast", " fast"}},
		"the process died before the claim was written": {
			wanted: "fast", has: "slow", volume: "fast", status: modifyInProgress, target: "fast", call: "fast", written: []string{"InProgress fast", " fast"},
		},
		"another class while the outcome is unknown": {
			wanted: "gold", has: "slow", volume: "slow", status: modifyInProgress, target: "fast", call: "fast", written: []string{"InProgress fast", "volume fast", " fast"},
		},
		"the same, and it is known to be uncertain": {
			wanted: "gold", has: "slow", volume: "slow", status: modifyInProgress, target: "fast", reason: "Uncertain",
			call: "fast", written: []string{"InProgress fast", "volume fast", " fast"},
		},
		"back to the former class while the outcome is unknown": {
			wanted: "slow", has: "slow", volume: "slow", status: modifyInProgress, target: "fast", call: "fast", written: []string{"InProgress fast", "volume fast", " fast"},
		},
		"another class after a failure": {
			wanted: "gold", has: "slow", volume: "slow", status: modifyInProgress, target: "fast", reason: "Failed",
			call: "gold", written: []string{"InProgress gold", "volume gold", " gold"},
		},
		"back to the former class after a failure": {
			wanted: "slow", has: "slow", volume: "slow", status: modifyInProgress, target: "fast", reason: "Failed",
			call: "slow", written: []string{"InProgress slow", " slow"},
		},
		"back to the former class after one that is infeasible": {
			wanted: "slow", has: "slow", volume: "slow", status: modifyInfeasible, target: "fast", reason: "Infeasible",
			call: "slow", written: []string{"InProgress slow", " slow"},
		},
		"another class after one that is infeasible": {
			wanted: "gold", has: "slow", volume: "slow", status: modifyInfeasible, target: "fast", reason: "Infeasible",
			call: "gold", written: []string{"InProgress gold", "volume gold", " gold"},
		},
		"one that is infeasible, once more": {
			wanted: "fast", has: "slow", volume: "slow", status: modifyInfeasible, target: "fast", reason: "Infeasible",
			call: "fast", written: []string{"InProgress fast", "volume fast", " fast"},
		},
		"none after one that is infeasible": {status: modifyInfeasible, target: "fast", reason: "Infeasible", written: []string{" "}},
		"none after a failure: what was begun is done": {
			status: modifyInProgress, target: "fast", reason: "Failed", call: "fast", written: []string{"InProgress fast", "volume fast", " fast"},
		},
		"none while the class is not there": {status: modifyPending, target: "missing", written: []string{" "}},
		"the class is there now": {
			wanted: "fast", status: modifyPending, target: "fast", call: "fast", written: []string{"InProgress fast", "volume fast", " fast"},
		},
		"a status without a class":  {wanted: "fast", status: modifyInProgress, call: "fast", written: []string{"InProgress fast", "volume fast", " fast"}},
		"a status and nothing else": {status: modifyInProgress, written: []string{" "}},
	} {
		t.Run(name, func(t *testing.T) {
			claim := naming(test.wanted, test.has)
			if test.status != "" {
				claim.Status.ModifyVolumeStatus = &v1.ModifyVolumeStatus{Status: test.status, TargetVolumeAttributesClassName: test.target}
			}
			if test.reason != "" {
				claim.Status.Conditions = []v1.PersistentVolumeClaimCondition{
					{Type: v1.PersistentVolumeClaimVolumeModifyVolumeError, Status: v1.ConditionTrue, Reason: test.reason},
				}
			}
			claims := newClaimStatus(claim)
			w, _ := modifyWorld(t, claims)
			w.succeeded(w.modify(of(test.volume)))
			var calls []string
			if test.call != "" {
				calls = []string{"ModifyVolume " + test.call, "ModifyVolume"}
			}
			assert.Equal(t, calls, w.history.all())
			assert.Equal(t, append([]string{}, test.written...), claims.written())
			assert.Nil(t, claims.claim.Status.ModifyVolumeStatus)
			if len(test.written) > 0 {
				assert.Empty(t, claims.claim.Status.Conditions)
			}
		})
	}
}

// TestAModificationThatFails is the table of how a call ends, and what the claim says then.
func TestAModificationThatFails(t *testing.T) {
	for name, test := range map[string]struct {
		class   string
		err     error
		is      error
		written []string
		status  v1.PersistentVolumeClaimModifyVolumeStatus
		reason  string
	}{
		"for good": {"fast", errBroken, errBroken, []string{"InProgress fast", "InProgress fast failed"}, modifyInProgress, "Failed"},
		"infeasible": {
			"fast", volume.ErrInfeasible, volume.ErrInfeasible, []string{"InProgress fast", "Infeasible fast failed"}, modifyInfeasible, "Infeasible",
		},
		"uncertain": {
			"fast", volume.Uncertain(errBroken), volume.ErrUncertain, []string{"InProgress fast", "InProgress fast failed"}, modifyInProgress, "Uncertain",
		},
		"infeasible, and uncertain": {
			"fast", volume.Uncertain(volume.ErrInfeasible), volume.ErrUncertain, []string{"InProgress fast", "InProgress fast failed"}, modifyInProgress, "Uncertain",
		},
		"not begun": {
			"fast", volume.Transient(errBroken), volume.ErrTransient, []string{"InProgress fast", "InProgress fast failed"}, modifyInProgress, "Failed",
		},
		"the class is not there":   {"missing", nil, volume.ErrNotFound, []string{"Pending missing"}, modifyPending, ""},
		"the class is for another": {"other", nil, volume.ErrInfeasible, []string{"Infeasible other failed"}, modifyInfeasible, "Infeasible"},
	} {
		t.Run(name, func(t *testing.T) {
			claims := newClaimStatus(naming(test.class, "slow"))
			w, _ := modifyWorld(t, claims)
			w.plugin.script["ModifyVolume"] = func(context.Context) error { return test.err }
			op, err := w.modify(of("slow"))
			require.NoError(t, err)
			<-op.Done()
			require.ErrorIs(t, op.Err(), test.is)
			assert.Equal(t, test.written, claims.written())
			status := claims.claim.Status
			assert.Equal(t, &v1.ModifyVolumeStatus{Status: test.status, TargetVolumeAttributesClassName: test.class}, status.ModifyVolumeStatus)
			assert.Equal(t, "slow", *status.CurrentVolumeAttributesClassName)
			var reason string
			for _, c := range status.Conditions {
				reason = c.Reason
			}
			assert.Equal(t, test.reason, reason)
			assert.Equal(t, []string{"Warning VolumeModifyFailed data-claim"}, w.recorder.all())
			assert.Equal(t, test.status == modifyInProgress && test.reason != "Failed", operationexecutor.IsModificationUncertain(claims.claim))
		})
	}
}

// A call that may still take effect is not forgotten when a later one ends without effect, or does not begin: no other class may
// take its place.
func TestAFailureDoesNotEndTheUncertaintyOfAnEarlierCall(t *testing.T) {
	for name, second := range map[string]error{
		"for good":   errBroken,
		"infeasible": volume.ErrInfeasible,
		"uncertain":  volume.Uncertain(errBroken),
		"not begun":  volume.Transient(errBroken),
	} {
		t.Run(name, func(t *testing.T) {
			claims := newClaimStatus(naming("fast", "slow"))
			w, _ := modifyWorld(t, claims)
			for _, ends := range []error{volume.Uncertain(errors.New("no answer")), second} {
				w.plugin.script["ModifyVolume"] = func(context.Context) error { return ends }
				op, err := w.modify(of("slow"))
				require.NoError(t, err)
				<-op.Done()
				require.ErrorIs(t, op.Err(), ends)
				w.executor.ResetBackoff(operationexecutor.Key{Volume: volumeName("data")})
			}
			assert.True(t, operationexecutor.IsModificationUncertain(claims.claim))
			gold := "gold"
			claims.claim.Spec.VolumeAttributesClassName = &gold
			assert.Equal(t, "fast", operationexecutor.ModificationClass(claims.claim))

			delete(w.plugin.script, "ModifyVolume")
			w.succeeded(w.modify(of("slow")))
			assert.Equal(t, "fast", *claims.claim.Status.CurrentVolumeAttributesClassName)
			assert.False(t, operationexecutor.IsModificationUncertain(claims.claim))
		})
	}
}

// A class that is gone while the outcome of its modification is unknown is waited for: no other may take its place.
func TestAClassThatIsGoneDuringAModificationIsWaitedFor(t *testing.T) {
	claim := naming("gold", "slow")
	claim.Status.ModifyVolumeStatus = &v1.ModifyVolumeStatus{Status: modifyInProgress, TargetVolumeAttributesClassName: "missing"}
	claims := newClaimStatus(claim)
	w, _ := modifyWorld(t, claims)
	op, err := w.modify(of("slow"))
	require.NoError(t, err)
	<-op.Done()
	require.ErrorIs(t, op.Err(), volume.ErrNotFound)
	require.ErrorContains(t, op.Err(), `"missing" does not exist: create it`)
	assert.Empty(t, claims.written())
}

// A write that fails leaves a state from which the next attempt goes on.
func TestAModificationGoesOnAfterAnyWriteThatFailed(t *testing.T) {
	for write := 1; write <= 3; write++ {
		t.Run(fmt.Sprint("write ", write), func(t *testing.T) {
			claims := newClaimStatus(naming("fast", "slow"))
			claims.writeErr[write] = errors.New("the store is away")
			w, _ := modifyWorld(t, claims)
			op, err := w.modify(of("slow"))
			require.NoError(t, err)
			<-op.Done()
			require.ErrorIs(t, op.Err(), volume.ErrTransient)
			w.executor.ResetBackoff(operationexecutor.Key{Volume: volumeName("data")})
			w.succeeded(w.modify(of("slow")))
			assert.Nil(t, claims.claim.Status.ModifyVolumeStatus)
			assert.Equal(t, "fast", *claims.claim.Status.CurrentVolumeAttributesClassName)
			assert.Equal(t, "fast", *claims.volume.Spec.VolumeAttributesClassName)
		})
	}
}

// The values of a class are in no error, event or condition.
func TestTheParametersOfAClassAreNotShown(t *testing.T) {
	claims := newClaimStatus(naming("fast", "slow"))
	w, _ := modifyWorld(t, claims)
	w.plugin.script["ModifyVolume"] = func(context.Context) error { return errors.New("the storage refuses s3cr3t-word") }
	op, err := w.modify(of("slow"))
	require.NoError(t, err)
	<-op.Done()
	require.ErrorContains(t, op.Err(), "the storage refuses")
	assert.NotContains(t, op.Err().Error(), "s3cr3t")
	assert.NotContains(t, fmt.Sprint(claims.claim.Status.Conditions), "s3cr3t")
	assert.Contains(t, fmt.Sprint(claims.claim.Status.Conditions), "the storage refuses")
}

func TestWhatCannotBeModified(t *testing.T) {
	claims := newClaimStatus(naming("fast", "slow"))
	w, _ := modifyWorld(t, claims)
	unclaimed := of("slow")
	unclaimed.PersistentVolume.Spec.ClaimRef = nil
	op, err := w.modify(unclaimed)
	require.NoError(t, err)
	<-op.Done()
	require.ErrorIs(t, op.Err(), volume.ErrUnsupported)
	w = expandWorld(t, claims)
	op, err = w.modify(of("slow"))
	require.NoError(t, err)
	<-op.Done()
	require.ErrorContains(t, op.Err(), "give GeneratorOptions Claims and Attributes")
}

// TestModificationApply is the whole of what a modification writes into a claim, for every state.
func TestModificationApply(t *testing.T) {
	since := metav1.NewTime(time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC))
	before := naming("fast", "slow")
	before.Status.ModifyVolumeStatus = &v1.ModifyVolumeStatus{Status: modifyInProgress, TargetVolumeAttributesClassName: "gold"}
	before.Status.Conditions = []v1.PersistentVolumeClaimCondition{
		{Type: "Other", Status: v1.ConditionTrue, LastTransitionTime: since},
		{Type: v1.PersistentVolumeClaimVolumeModifyingVolume, Status: v1.ConditionTrue, LastTransitionTime: since},
		{Type: v1.PersistentVolumeClaimVolumeModifyVolumeError, Status: v1.ConditionTrue, LastTransitionTime: since, Reason: "Failed"},
	}
	const modifying, failure = v1.PersistentVolumeClaimVolumeModifyingVolume, v1.PersistentVolumeClaimVolumeModifyVolumeError
	type kinds = []v1.PersistentVolumeClaimConditionType
	for name, test := range map[string]struct {
		m    operationexecutor.Modification
		want kinds
	}{
		"waiting":          {operationexecutor.Modification{Status: modifyPending}, kinds{"Other"}},
		"begun":            {operationexecutor.Modification{Status: modifyInProgress}, kinds{"Other", modifying}},
		"begun and failed": {operationexecutor.Modification{Status: modifyInProgress, Err: errBroken}, kinds{"Other", modifying, failure}},
		"never":            {operationexecutor.Modification{Status: modifyInfeasible, Err: errBroken}, kinds{"Other", modifying, failure}},
		"finished":         {operationexecutor.Modification{}, kinds{"Other"}},
	} {
		t.Run(name, func(t *testing.T) {
			test.m.Class = "fast"
			old := before.DeepCopy()
			after := test.m.Apply(before)
			assert.Equal(t, old, before, "the claim that was given is not changed")
			var got kinds
			for _, c := range after.Status.Conditions {
				got = append(got, c.Type)
				assert.Equal(t, v1.ConditionTrue, c.Status)
				assert.Equal(t, since, c.LastTransitionTime, "what was so before keeps its time")
			}
			assert.Equal(t, test.want, got)
			if test.m.Status == "" {
				assert.Nil(t, after.Status.ModifyVolumeStatus)
				assert.Equal(t, "fast", *after.Status.CurrentVolumeAttributesClassName)
				return
			}
			assert.Equal(t, &v1.ModifyVolumeStatus{Status: test.m.Status, TargetVolumeAttributesClassName: "fast"}, after.Status.ModifyVolumeStatus)
			assert.Equal(t, "slow", *after.Status.CurrentVolumeAttributesClassName)
		})
	}
}
