package volumemanager

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/loop"
	"github.com/volumekit/volumekit/volume"
)

// This file deals with loop devices that a manager, or a plugin, has left attached.

// LoopDevices tells which loop devices there are, and detaches one; a [*loop.Manager] is one.
type LoopDevices interface {
	// Devices returns every loop device of the machine that has a file, whoever attached it.
	Devices(ctx context.Context) ([]loop.Device, error)
	// Detach detaches a device and proves it. While somebody has claimed the device, nothing is changed, and the error
	// matches loop.ErrInUse.
	Detach(ctx context.Context, device loop.Device) error
}

var _ LoopDevices = (*loop.Manager)(nil)

// recordedDevices are the devices on record: by their paths, and by the names of their volumes, with which plugins label
// loop devices.
type recordedDevices struct {
	paths  map[string]struct{}
	labels map[string]struct{} // as the kernel keeps them
}

func (j *journal) recordedDevices() recordedDevices {
	j.mu.Lock()
	defer j.mu.Unlock()
	r := newRecordedDevices()
	for _, e := range j.entries {
		r.add(e.record)
	}
	return r
}

func newRecordedDevices() recordedDevices {
	return recordedDevices{paths: make(map[string]struct{}), labels: make(map[string]struct{})}
}

func (r recordedDevices) add(v volumeRecord) {
	r.labels[loop.KeptLabel(string(v.Volume))] = struct{}{}
	r.labels[loop.OlderLabel(string(v.Volume))] = struct{}{}
	if v.Attachment != nil {
		r.paths[v.Attachment.DevicePath] = struct{}{}
	}
	if v.Staging != nil {
		r.paths[v.Staging.DevicePath] = struct{}{}
	}
}

// account for a device. One that may have the label of a volume on record counts as that one's, so that it is left alone.
func (r recordedDevices) account(d loop.Device) bool {
	_, byPath := r.paths[d.Path]
	_, byLabel := r.labels[d.Label]
	return byPath || byLabel
}

// loopDevices returns the loop devices that have a file; none where they are not looked at.
func (m *Manager) loopDevices(ctx context.Context) ([]loop.Device, error) {
	if m.options.Loops == nil {
		return nil, nil
	}
	all, err := m.options.Loops.Devices(ctx)
	if errors.Is(err, mount.ErrUnsupported) {
		return nil, nil // Nothing could have attached one.
	}
	return all, err
}

// orphanDevices returns those of all loop devices whose files lie under the root, and that neither a record nor a mount accounts
// for.
func (m *Manager) orphanDevices(all []loop.Device, f mountsFound, recorded recordedDevices) []Orphan {
	root := shownAs(filepath.Dir(m.plugins.Host().GetPodsDir()))
	mounted := f.devices()
	var orphans []Orphan
	for _, d := range all {
		_, isMounted := mounted[[2]uint32{d.Major, d.Minor}]
		if isMounted || d.BackingRdev != 0 || !strings.HasPrefix(d.BackingPath, root+"/") || recorded.account(d) {
			continue
		}
		orphans = append(orphans, Orphan{Path: d.Path, BackingFile: d.BackingPath, device: d})
	}
	return orphans
}

// shownAs returns a directory as the kernel shows it.
func shownAs(dir string) string {
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		return real
	}
	return dir
}

// devices returns the numbers of all devices that are mounted.
func (f mountsFound) devices() map[[2]uint32]struct{} {
	numbers := make(map[[2]uint32]struct{}, len(f.table))
	for _, mp := range f.table {
		numbers[[2]uint32{mp.Major, mp.Minor}] = struct{}{}
	}
	return numbers
}

// withoutRecordedDevices leaves out the devices of volumes that have come on record.
func withoutRecordedDevices(orphans []Orphan, recorded recordedDevices) []Orphan {
	return slices.DeleteFunc(orphans, func(o Orphan) bool { return o.BackingFile != "" && recorded.account(o.device) })
}

// removeDevice detaches a device that is proven to be of a volume of ours, and that nobody uses. An intent for that volume
// waits meanwhile.
func (m *Manager) removeDevice(ctx context.Context, o Orphan) error {
	name, err := m.volumeOf(o.device)
	if err != nil {
		return err
	}
	release, ok := m.journal.turns.Take(ctx.Done(), name)
	if !ok {
		return context.Cause(ctx)
	}
	defer release()
	if m.journal.recordedDevices().account(o.device) {
		return nil // It is that of a volume now.
	}
	all, err := m.options.Loops.Devices(ctx)
	if err != nil {
		return err
	}
	for _, d := range all {
		if d.Holds(o.device) { // It is bound for a pod, or was.
			return fmt.Errorf("%s, which has %q and is on no record, stays: %s holds it: %w", o.Path, o.BackingFile, d.Path, volume.ErrInUse)
		}
	}
	if err := m.options.Loops.Detach(ctx, o.device); err != nil {
		return fmt.Errorf("%s, which has %q and is on no record, stays: %w", o.Path, o.BackingFile, err)
	}
	m.options.Logger.Info("a loop device of which nothing was on record was detached", "device", o.Path, "file", o.BackingFile)
	return nil
}

// volumeOf returns the volume whose name a device has as its label, if its file lies where the plugin of that volume keeps
// what is its own. Any other device may be somebody else's. Of a long name the label has a digest: it proves the name that
// the file has.
func (m *Manager) volumeOf(d loop.Device) (v1.UniqueVolumeName, error) {
	file := filepath.Base(d.BackingPath)
	for _, plugin := range m.plugins.PluginNames() {
		if !strings.HasPrefix(d.BackingPath, shownAs(m.plugins.Host().GetPluginDir(plugin))+"/") {
			continue
		}
		if of, _, err := volume.SplitUniqueName(v1.UniqueVolumeName(d.Label)); err == nil && of == plugin && d.IsLabelled(d.Label) {
			return v1.UniqueVolumeName(d.Label), nil
		}
		for _, name := range []string{file, strings.TrimSuffix(file, filepath.Ext(file))} {
			if name := volume.GetUniqueVolumeName(plugin, name); d.MayBeLabelled(string(name)) {
				return name, nil
			}
		}
	}
	return "", fmt.Errorf("%s has %q and the label %q, which does not prove that it is ours: detach it if you know whose it is: %w",
		d.Path, d.BackingPath, d.Label, volume.ErrInUse)
}
