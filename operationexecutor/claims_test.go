package operationexecutor_test

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

// claimStatus holds one claim and its PersistentVolume. It keeps what is written as one line each, and refuses what is not
// about the version that it has.
type claimStatus struct {
	mu     sync.Mutex
	claim  *v1.PersistentVolumeClaim
	volume *v1.PersistentVolume
	lines  []string
	err    error // of reads
	// writeErr is the error of the nth write, from 1.
	writeErr map[int]error
	writes   int
}

func newClaimStatus(claim *v1.PersistentVolumeClaim) *claimStatus {
	claim.ResourceVersion = "1"
	return &claimStatus{claim: claim, writeErr: map[int]error{}}
}

// claimOf returns a claim that asks for one size and has another.
func claimOf(name, requested, has string) *v1.PersistentVolumeClaim {
	return &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name + "-claim"},
		Spec: v1.PersistentVolumeClaimSpec{Resources: v1.VolumeResourceRequirements{
			Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse(requested)},
		}},
		Status: v1.PersistentVolumeClaimStatus{Capacity: v1.ResourceList{v1.ResourceStorage: resource.MustParse(has)}},
	}
}

// at says how far the claim's expansion has come.
func (c *claimStatus) at(status v1.ClaimResourceStatus, allocated string) *claimStatus {
	c.claim.Status.AllocatedResources = v1.ResourceList{v1.ResourceStorage: resource.MustParse(allocated)}
	if status != "" {
		c.claim.Status.AllocatedResourceStatuses = map[v1.ResourceName]v1.ClaimResourceStatus{v1.ResourceStorage: status}
	}
	return c
}

func (c *claimStatus) Claim(context.Context, *volume.Spec) (*v1.PersistentVolumeClaim, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.claim.DeepCopy(), c.err
}

func (c *claimStatus) SetExpansion(_ context.Context, claim *v1.PersistentVolumeClaim, e operationexecutor.Expansion) (*v1.PersistentVolumeClaim, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	line := fmt.Sprintf("%s %s", e.Status, e.Size.String())
	if e.Err != nil {
		line += " failed"
	}
	if err := c.wrote(line); err != nil {
		return nil, err
	}
	if claim.ResourceVersion != c.claim.ResourceVersion {
		return nil, fmt.Errorf("version %s is not %s", claim.ResourceVersion, c.claim.ResourceVersion)
	}
	c.claim = e.Apply(claim)
	version, _ := strconv.Atoi(claim.ResourceVersion)
	c.claim.ResourceVersion = strconv.Itoa(version + 1)
	return c.claim.DeepCopy(), nil
}

func (c *claimStatus) SetCapacity(_ context.Context, pv *v1.PersistentVolume, size resource.Quantity) (*v1.PersistentVolume, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.wrote("capacity " + size.String()); err != nil {
		return nil, err
	}
	c.volume = pv.DeepCopy()
	c.volume.Spec.Capacity = v1.ResourceList{v1.ResourceStorage: size}
	return c.volume, nil
}

func (c *claimStatus) wrote(line string) error {
	c.writes++
	if err := c.writeErr[c.writes]; err != nil {
		return err
	}
	c.lines = append(c.lines, line)
	return nil
}

// written returns what was written, in order.
func (c *claimStatus) written() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]string{}, c.lines...)
}

// TestApply is the whole of what an expansion writes into a claim, for every state.
func TestApply(t *testing.T) {
	since := metav1.NewTime(time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC))
	before := newClaimStatus(claimOf("data", "20Gi", "10Gi")).at(v1.PersistentVolumeClaimControllerResizeInProgress, "20Gi").claim
	before.Status.Conditions = []v1.PersistentVolumeClaimCondition{
		{Type: "Other", Status: v1.ConditionTrue, LastTransitionTime: since},
		{Type: v1.PersistentVolumeClaimFileSystemResizePending, Status: v1.ConditionTrue, LastTransitionTime: since},
		{Type: v1.PersistentVolumeClaimControllerResizeError, Status: v1.ConditionTrue, LastTransitionTime: since},
	}
	const (
		resizing, pending   = v1.PersistentVolumeClaimResizing, v1.PersistentVolumeClaimFileSystemResizePending
		controlErr, nodeErr = v1.PersistentVolumeClaimControllerResizeError, v1.PersistentVolumeClaimNodeResizeError
	)
	type kinds = []v1.PersistentVolumeClaimConditionType
	for name, test := range map[string]struct {
		e    operationexecutor.Expansion
		want kinds
	}{
		"begun":               {operationexecutor.Expansion{Status: v1.PersistentVolumeClaimControllerResizeInProgress}, kinds{"Other", resizing}},
		"begun and failed":    {operationexecutor.Expansion{Status: v1.PersistentVolumeClaimControllerResizeInProgress, Err: errBroken}, kinds{"Other", resizing, controlErr}},
		"never":               {operationexecutor.Expansion{Status: v1.PersistentVolumeClaimControllerResizeInfeasible, Err: errBroken}, kinds{"Other", controlErr}},
		"a node's turn":       {operationexecutor.Expansion{Status: v1.PersistentVolumeClaimNodeResizePending}, kinds{"Other", pending}},
		"a node is at it":     {operationexecutor.Expansion{Status: v1.PersistentVolumeClaimNodeResizeInProgress}, kinds{"Other", pending}},
		"a node failed":       {operationexecutor.Expansion{Status: v1.PersistentVolumeClaimNodeResizeInProgress, Err: errBroken}, kinds{"Other", pending, nodeErr}},
		"never, says a node":  {operationexecutor.Expansion{Status: v1.PersistentVolumeClaimNodeResizeInfeasible, Err: errBroken}, kinds{"Other", nodeErr}},
		"finished":            {operationexecutor.Expansion{}, kinds{"Other"}},
		"finished, with news": {operationexecutor.Expansion{Err: errBroken}, kinds{"Other"}},
	} {
		t.Run(name, func(t *testing.T) {
			test.e.Size = resource.MustParse("30Gi")
			old := before.DeepCopy()
			after := test.e.Apply(before)
			assert.Equal(t, old, before, "the claim that was given is not changed")
			var got kinds
			for _, c := range after.Status.Conditions {
				got = append(got, c.Type)
				assert.Equal(t, v1.ConditionTrue, c.Status)
				switch c.Type {
				case controlErr, nodeErr:
					assert.Equal(t, errBroken.Error(), c.Message)
				}
				if c.Type != resizing && c.Type != nodeErr {
					assert.Equal(t, since, c.LastTransitionTime, "what was so before keeps its time")
				}
			}
			assert.Equal(t, test.want, got)
			has, allocated := after.Status.Capacity[v1.ResourceStorage], after.Status.AllocatedResources[v1.ResourceStorage]
			assert.Equal(t, test.e.Status, after.Status.AllocatedResourceStatuses[v1.ResourceStorage])
			if test.e.Status == "" {
				assert.Equal(t, "30Gi", has.String())
				assert.Equal(t, "20Gi", allocated.String())
				assert.Nil(t, after.Status.AllocatedResourceStatuses)
			} else {
				assert.Equal(t, "10Gi", has.String())
				assert.Equal(t, "30Gi", allocated.String())
			}
		})
	}
}
