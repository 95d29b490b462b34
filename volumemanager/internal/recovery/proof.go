package recovery

import (
	"errors"
	"fmt"
	"maps"
	"runtime/debug"
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/journal"
	"github.com/volumekit/volumekit/volumemanager/internal/pluginpaths"
)

// This file decides whether a record is trusted. Its volume's name and its paths must be those that the plugin
// computes, and no record of another volume may have one of these paths (docs/contract.md, W10). Otherwise the manager
// could tear down another volume, even that of a running pod.

// errDisagree matches the error of a record that differs from what its plugin computes. Any other error says that the plugin
// did not answer: it is then unknown whether they agree.
var errDisagree = fmt.Errorf("the record does not agree with its plugin: %w", volume.ErrInvalid)

// proofs compares records with their plugins. It has the records whose plugins have not answered yet. It is safe for
// concurrent use. Make it with newProofs.
type proofs struct {
	plugins *volume.VolumePluginMgr

	unprovenMu sync.Mutex
	unproven   map[v1.UniqueVolumeName]journal.Found
}

func newProofs(plugins *volume.VolumePluginMgr) *proofs {
	return &proofs{plugins: plugins, unproven: make(map[v1.UniqueVolumeName]journal.Found)}
}

// checkLoaded returns a record with the present name of its volume. The record is unproven while its plugin does not answer.
func (p *proofs) checkLoaded(v journal.Found) (journal.Found, error) {
	v = p.renamed(v)
	err := p.compare(v)
	v.Unproven = err != nil && !errors.Is(err, errDisagree)
	if v.Unproven {
		err = nil // Prove compares them before the first operation.
	}
	return v, err
}

// compare compares a record with the results of its plugin for the spec and the pods. By the plugins' contract it does
// no I/O. If they differ, the error matches errDisagree.
func (p *proofs) compare(v journal.Found) (err error) {
	defer func() {
		if value := recover(); value != nil {
			err = &volume.PanicError{Call: "the paths and the name of volume " + string(v.Record.Volume), Value: value, Stack: debug.Stack()}
		}
	}()
	if err := p.compareName(v); err != nil {
		return err
	}
	if v.Record.Staging != nil {
		path, err := pluginpaths.Staging(p.plugins, v.Spec)
		if err != nil {
			return err
		}
		if path != v.Record.Staging.Path {
			return fmt.Errorf("volume %q is staged at %q by its record, at %q by plugin %q: %w", v.Record.Volume, v.Record.Staging.Path, path, v.Record.Plugin, errDisagree)
		}
	}
	pathOf := pluginpaths.SetUp
	if volume.IsBlock(v.Spec) {
		pathOf = pluginpaths.Link
	}
	for uid, setUp := range v.Record.Pods {
		spec := v.SpecOf(uid)
		if journal.UsedWhereItIs(spec, setUp.Path) {
			continue // It was compared with the spec when it was read.
		}
		path, err := pathOf(p.plugins, v.Record.Plugin, spec.Name(), uid)
		if err != nil {
			return err
		}
		if path != setUp.Path {
			return fmt.Errorf("volume %q is set up for pod %q at %q by its record, at %q by plugin %q: %w", v.Record.Volume, uid, setUp.Path, path, v.Record.Plugin, errDisagree)
		}
	}
	return nil
}

// compareName compares the unique name of the volume for each pod: the name of a volume that is not shared contains the pod.
func (p *proofs) compareName(v journal.Found) error {
	uids := slices.Collect(maps.Keys(v.Record.Pods))
	if len(uids) == 0 {
		uids = []types.UID{"any"} // The volume is staged or attached: its pods share the name.
	}
	for _, uid := range uids {
		name, err := p.plugins.UniqueVolumeName(volume.UniquePodName(uid), v.SpecOf(uid))
		if err != nil {
			return err
		}
		if name != v.Record.Volume {
			return fmt.Errorf("the record of volume %q is of volume %q for pod %q: %w", v.Record.Volume, name, uid, errDisagree)
		}
	}
	return nil
}

// add adds a record that must still be proven.
func (p *proofs) add(v journal.Found) {
	p.unprovenMu.Lock()
	defer p.unprovenMu.Unlock()
	p.unproven[v.Record.Volume] = v
}

// Prove compares the record of a found volume with its plugin, if that was not possible at the start. Until they agree
// the manager runs no operation on the volume.
func (p *proofs) Prove(name v1.UniqueVolumeName) error {
	p.unprovenMu.Lock()
	v, ok := p.unproven[name]
	p.unprovenMu.Unlock()
	if !ok {
		return nil
	}
	if err := p.compare(v); err != nil {
		return fmt.Errorf("volume %q is left alone, since its record is not proven: %w", name, err)
	}
	p.Forget(name)
	return nil
}

// Forget drops a volume from the unproven ones: it is proven, or nothing of it is left.
func (p *proofs) Forget(name v1.UniqueVolumeName) {
	p.unprovenMu.Lock()
	defer p.unprovenMu.Unlock()
	delete(p.unproven, name)
}
