package volumemanager

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"runtime/debug"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/volume"
)

// This file decides whether a record is believed: its volume's name and its paths must be those that the plugin computes, and
// no record of another volume may name one of these paths (docs/contract.md, W10). What a record says is torn down otherwise,
// be it the volume of a pod that runs.

// errDisagree matches the error of a record that is not what its plugin computes. Any other error says that the plugin did
// not answer, so that it is not known yet.
var errDisagree = fmt.Errorf("the record does not agree with its plugin: %w", volume.ErrInvalid)

// agrees compares a record with what its plugin computes of the spec and the pods. It does no I/O, by the plugins' contract.
// The error matches errDisagree when they differ.
func (m *Manager) agrees(r volumeRecord, spec *volume.Spec) error {
	_, err := guarded("the paths and the name of volume "+string(r.Volume), func() (struct{}, error) { return struct{}{}, m.compare(r, spec) })
	return err
}

// guarded asks a plugin something that it answers without I/O. A panic is an error.
func guarded[T any](what string, ask func() (T, error)) (answer T, err error) {
	defer func() {
		if value := recover(); value != nil {
			err = &volume.PanicError{Call: what, Value: value, Stack: debug.Stack()}
		}
	}()
	return ask()
}

func (m *Manager) compare(r volumeRecord, spec *volume.Spec) error {
	if err := m.agreesOnName(r, spec); err != nil {
		return err
	}
	if r.Staging != nil {
		path, err := m.stagingOf(spec)
		if err != nil {
			return err
		}
		if path != r.Staging.Path {
			return fmt.Errorf("volume %q is staged at %q by its record, at %q by plugin %q: %w", r.Volume, r.Staging.Path, path, r.Plugin, errDisagree)
		}
	}
	for uid, p := range r.Pods {
		if usedWhereItIs(spec, p.Path) {
			continue // check has compared it with the spec.
		}
		path, err := m.setUpPathOf(r.Plugin, spec, uid)
		if err != nil {
			return err
		}
		if path != p.Path {
			return fmt.Errorf("volume %q is set up for pod %q at %q by its record, at %q by plugin %q: %w", r.Volume, uid, p.Path, path, r.Plugin, errDisagree)
		}
	}
	return nil
}

// agreesOnName compares the name of the volume, which for many is another one for each pod.
func (m *Manager) agreesOnName(r volumeRecord, spec *volume.Spec) error {
	uids := slices.Collect(maps.Keys(r.Pods))
	if len(uids) == 0 {
		uids = []types.UID{"any"} // It is staged or attached, so that its pods share the name.
	}
	for _, uid := range uids {
		name, err := m.plugins.UniqueVolumeName(volume.UniquePodName(uid), spec)
		if err != nil {
			return err
		}
		if name != r.Volume {
			return fmt.Errorf("the record of volume %q is of volume %q for pod %q: %w", r.Volume, name, uid, errDisagree)
		}
	}
	return nil
}

// setUpPathOf asks a plugin where it would tear a volume down for a pod; of a block volume, where the pod's link is.
func (m *Manager) setUpPathOf(pluginName string, spec *volume.Spec, uid types.UID) (string, error) {
	if isBlock(spec) {
		return m.linkOf(pluginName, spec.Name(), uid)
	}
	return m.setUpDirOf(pluginName, spec.Name(), uid)
}

// linkOf returns the path of a pod's link to its device.
func (m *Manager) linkOf(pluginName, inner string, uid types.UID) (string, error) {
	plugin, err := m.plugins.FindMapperPluginByName(pluginName)
	if err != nil {
		return "", err
	}
	unmapper, err := plugin.NewBlockVolumeUnmapper(inner, uid)
	if err != nil {
		return "", err
	}
	dir, link := unmapper.GetPodDeviceMapPath()
	return filepath.Join(dir, link), nil
}

// setUpDirOf returns the path at which a plugin tears a volume down for a pod.
func (m *Manager) setUpDirOf(pluginName, inner string, uid types.UID) (string, error) {
	plugin, err := m.plugins.FindPluginByName(pluginName)
	if err != nil {
		return "", err
	}
	unmounter, err := plugin.NewUnmounter(inner, uid)
	if err != nil {
		return "", err
	}
	return unmounter.GetPath(), nil
}

// usedWhereItIs reports whether path is the directory of the node that a hostPath volume is. Many volumes may be one.
func usedWhereItIs(spec *volume.Spec, path string) bool {
	used := hostPathOf(spec)
	return used != "" && path == filepath.Clean(used)
}

// unproven are the records whose plugins did not answer at the start, perhaps since they are not there yet.
type unproven map[v1.UniqueVolumeName]foundVolume

// keepUnproven remembers those of the found volumes that are still to be compared with their plugins.
func (m *Manager) keepUnproven(found []foundVolume) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, v := range found {
		if v.unproven {
			m.unproven[v.record.Volume] = v
		}
	}
}

// prove compares the record by which a volume was found with its plugin, if that was not possible at the start. Until they
// agree nothing is done to the volume.
func (m *Manager) prove(name v1.UniqueVolumeName) error {
	m.mu.Lock()
	v, ok := m.unproven[name]
	m.mu.Unlock()
	if !ok {
		return nil
	}
	if err := m.agrees(v.record, v.spec); err != nil {
		return fmt.Errorf("volume %q is left alone, since its record is not proven: %w", name, err)
	}
	m.mu.Lock()
	delete(m.unproven, name)
	m.mu.Unlock()
	return nil
}

// refuseShared refuses every record that names a path which the record of another volume names, too: at least one of them is
// wrong, and it is not known which.
func refuseShared(loaded []loadedRecord) {
	holders := make(map[string]int, len(loaded)) // the first record that names a path
	for i, l := range loaded {
		if l.err != nil {
			continue
		}
		for _, path := range l.ownPaths() {
			first, ok := holders[path]
			if !ok {
				holders[path] = i
				continue
			}
			if other := loaded[first].record.Volume; other != l.record.Volume {
				loaded[i].err = sharedPath(l.record.Volume, path, other)
				if !errors.Is(loaded[first].err, errSharedPath) {
					loaded[first].err = sharedPath(other, path, l.record.Volume)
				}
			}
		}
	}
}

// errSharedPath matches the error of a record that names a path of another one.
var errSharedPath = fmt.Errorf("two volumes cannot be at one path: %w", volume.ErrInvalid)

func sharedPath(name v1.UniqueVolumeName, path string, other v1.UniqueVolumeName) error {
	return fmt.Errorf("the record of volume %q names path %q, which the record of volume %q names too; both are set aside: %w", name, path, other, errSharedPath)
}

// ownPaths returns the paths of a record at which nothing else can be.
func (v foundVolume) ownPaths() []string {
	var paths []string
	if v.record.Staging != nil {
		paths = append(paths, v.record.Staging.Path)
	}
	for _, p := range v.record.Pods {
		if !usedWhereItIs(v.spec, p.Path) {
			paths = append(paths, p.Path)
		}
	}
	return paths
}
