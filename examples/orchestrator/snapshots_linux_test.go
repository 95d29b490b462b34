package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/mount/mounttest"
	"github.com/volumekit/volumekit/volume"
)

// snapshotName is the name of the snapshot that is made.
const snapshotName = "snapshot"

// A process that makes or deletes a snapshot of a volume in use is killed before every system call with an effect, also while the
// volume is frozen. Then the pods of the next process can write, there is the whole snapshot or none, and the same step again
// ends with what was wanted.
func TestSnapshotsAreWholeOrNotThereWhenKilled(t *testing.T) {
	mounttest.RequireRoot(t)
	p := buildTests(t)
	for _, below := range []string{"", "xfs"} {
		for _, do := range []string{doSnapshot, doDeleteSnapshot} {
			t.Run(do+" on "+below, func(t *testing.T) {
				shop := newImageShop(t, imageCase{do: do, fsType: "ext4", below: below, copies: true, used: true}, p)
				s := &snapshotShop{imageShop: shop, do: shop.source}
				s.do.Do = do
				s.killAll()
			})
		}
	}
}

// snapshotShop is where one case is tried time and again.
type snapshotShop struct {
	*imageShop
	do imageOrder
}

func (s *snapshotShop) order(do string) imageOrder {
	o := s.do
	o.Do = do
	return o
}

func (s *snapshotShop) killAll() {
	s.t.Helper()
	frozen, calls := 0, map[string]int{}
	for call := 1; ; call++ {
		var at string
		require.NoError(s.t, s.begin())
		_, err := s.run(s.do, call, &at)
		require.NoError(s.t, err)
		if at == "" {
			require.NoError(s.t, s.end())
			break
		}
		calls[nameOfCall(at)]++
		if _, err := os.Lstat(filepath.Join(s.node.Images, "source.frozen")); err == nil {
			frozen++
		}
		require.NoError(s.t, s.goOn(call), "killed before %s", at)
	}
	s.t.Logf("killed before %v, %d times while the volume may be frozen", calls, frozen)
	assert.Positive(s.t, calls["unlinkat"])
	if s.do.Do == doSnapshot {
		assert.Positive(s.t, calls["renameat2"])
		assert.Greater(s.t, frozen, 1)
	}
}

// begin makes what is there before a process is killed.
func (s *snapshotShop) begin() error {
	if s.do.Do == doSnapshot {
		return nil
	}
	return s.order(doSnapshot).carryOut(s.t.Context())
}

// goOn looks at what a killed process has left, and finishes its work or undoes it.
func (s *snapshotShop) goOn(call int) error {
	plugin, err := s.node.plugin(s.t.Context()) // which thaws the volume
	if err != nil {
		return err
	}
	busy := filepath.Join(s.node.staging("source"), "busy")
	if err := errors.Join(os.WriteFile(busy, nil, 0o644), writeSynced(busy, fmt.Sprint(call))); err != nil {
		return err
	}
	listed, err := plugin.ListSnapshots(s.t.Context())
	if err != nil {
		return err
	}
	for _, found := range listed {
		err = errors.Join(err, s.isWhole(found))
	}
	if err == nil && call%2 == 0 {
		err = s.order(doSnapshot).carryOut(s.t.Context())
		if err == nil {
			err = s.isWhole(volume.Snapshot{Handle: snapshotName, RestoreSize: s.source.Size})
		}
	}
	return errors.Join(err, s.end())
}

// isWhole restores a volume and looks at what it holds.
func (s *snapshotShop) isWhole(found volume.Snapshot) error {
	ctx := s.t.Context()
	plugin, err := s.node.plugin(ctx)
	if err != nil {
		return err
	}
	o := s.source
	o.Name, o.Size = "restored", s.source.Size*2
	options := o.options()
	group := "snapshot.storage.k8s.io"
	options.PVC.Spec.DataSource = &v1.TypedLocalObjectReference{APIGroup: &group, Kind: "VolumeSnapshot", Name: snapshotName}
	options.Snapshot = &found
	provisioner, err := plugin.NewProvisioner(options)
	if err != nil {
		return err
	}
	if _, err := provisioner.Provision(ctx, nil, nil); err != nil {
		return err
	}
	_, err = o.stage(ctx)
	if err == nil {
		err = errors.Join(contains(o.canary("")), contains(filepath.Join(s.node.staging("restored"), "later")))
	}
	err = errors.Join(err, o.release(context.WithoutCancel(ctx)))
	o.Do = doDelete
	if err := errors.Join(err, o.carryOut(ctx)); err != nil {
		return fmt.Errorf("a snapshot that is not whole: %w", err)
	}
	return nil
}

// end deletes the snapshot, and finds out whether anything is left of it.
func (s *snapshotShop) end() error {
	if err := s.order(doDeleteSnapshot).carryOut(s.t.Context()); err != nil {
		return err
	}
	names, err := s.names()
	names = slices.DeleteFunc(names, func(name string) bool { return strings.HasPrefix(name, "source.img") })
	if err == nil && len(names) > 0 {
		err = fmt.Errorf("%q is left", names)
	}
	return err
}
