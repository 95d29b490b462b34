package orphans

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/loop"
	"github.com/volumekit/volumekit/volume"
)

// This file handles loop devices that a manager, or a plugin, has left attached.

// LoopDevices returns the loop devices that have a backing file; none if the manager ignores loop devices.
func (l *List) LoopDevices(ctx context.Context) ([]loop.Device, error) {
	if l.options.Loops == nil {
		return nil, nil
	}
	all, err := l.options.Loops.Devices(ctx)
	if errors.Is(err, mount.ErrUnsupported) {
		return nil, nil // This platform has no loop devices.
	}
	return all, err
}

// Devices returns the loop devices whose files lie under the root, and that belong to no record and no mount.
func (l *List) Devices(all []loop.Device, table []mount.MountPoint, isRecorded func(loop.Device) bool) []Orphan {
	root := shownAs(filepath.Dir(l.options.Plugins.Host().GetPodsDir()))
	mounted := numbersOf(table)
	var orphans []Orphan
	for _, d := range all {
		_, isMounted := mounted[[2]uint32{d.Major, d.Minor}]
		if isMounted || d.BackingRdev != 0 || !strings.HasPrefix(d.BackingPath, root+"/") || isRecorded(d) {
			continue
		}
		orphans = append(orphans, Orphan{Path: d.Path, BackingFile: d.BackingPath, Device: d})
	}
	return orphans
}

// shownAs returns the path by which the kernel shows a directory: with symbolic links resolved.
func shownAs(dir string) string {
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		return real
	}
	return dir
}

// numbersOf returns the device numbers of all mounts.
func numbersOf(table []mount.MountPoint) map[[2]uint32]struct{} {
	numbers := make(map[[2]uint32]struct{}, len(table))
	for _, mp := range table {
		numbers[[2]uint32{mp.Major, mp.Minor}] = struct{}{}
	}
	return numbers
}

// removeDevice detaches an unused device that provably belongs to one of our volumes. Meanwhile no intent for that volume
// can be recorded.
func (l *List) removeDevice(ctx context.Context, o Orphan) error {
	name, err := l.volumeOf(o.Device)
	if err != nil {
		return err
	}
	release, ok := l.options.Records.Hold(ctx, name)
	if !ok {
		return context.Cause(ctx)
	}
	defer release()
	if l.options.Records.Accounts(o.Device) {
		return nil // It belongs to a volume now.
	}
	all, err := l.options.Loops.Devices(ctx)
	if err != nil {
		return err
	}
	for _, d := range all {
		if d.Holds(o.Device) { // It is bound for a pod, or was.
			return fmt.Errorf("%s, which has %q and is on no record, stays: %s holds it: %w", o.Path, o.BackingFile, d.Path, volume.ErrInUse)
		}
	}
	if err := l.options.Loops.Detach(ctx, o.Device); err != nil {
		return fmt.Errorf("%s, which has %q and is on no record, stays: %w", o.Path, o.BackingFile, err)
	}
	l.options.Logger.Info("a loop device of which nothing was on record was detached", "device", o.Path, "file", o.BackingFile)
	return nil
}

// volumeOf returns the volume that a device's label names, if the device's file lies in the directory of that volume's
// plugin. Any other device may be foreign. The label of a long name is a digest: it can only confirm a name, and the file's
// name provides it.
func (l *List) volumeOf(d loop.Device) (v1.UniqueVolumeName, error) {
	file := filepath.Base(d.BackingPath)
	for _, plugin := range l.options.Plugins.PluginNames() {
		if !strings.HasPrefix(d.BackingPath, shownAs(l.options.Plugins.Host().GetPluginDir(plugin))+"/") {
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
