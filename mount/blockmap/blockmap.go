package blockmap

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/loop"
)

// ErrNotDevice says that the path to be mapped is not a block device. Match it with errors.Is. Errors of this package also match
// loop.ErrInUse, mount.ErrForeign, mount.ErrInvalid, mount.ErrUncertain, and the errno of a system call.
var ErrNotDevice = errors.New("not a block device")

// Mapping is a device and the paths of its mapping. All paths are absolute and clean, as the host sees them.
type Mapping struct {
	// DevicePath is the path of the device; a symbolic link to it is followed. It is not needed to unmap.
	DevicePath string
	// GlobalMapPath is the directory of the volume's bind mounts. A missing directory is made with mode 0750.
	GlobalMapPath string
	// PodMapDir is the directory of the pod's link; a missing directory is made with mode 0750. LinkName is the link's name in it,
	// one path element.
	PodMapDir, LinkName string
	// PodUID names the bind mount in GlobalMapPath; one path element.
	PodUID string
}

// bindPath returns the path of the pod's bind mount.
func (m Mapping) bindPath() string { return filepath.Join(m.GlobalMapPath, m.PodUID) }

// label returns the label of the loop device that is the mapping's lock.
func (m Mapping) label() string {
	sum := sha256.Sum256([]byte(m.GlobalMapPath + "\x00" + m.PodUID))
	return "volumekit/map/" + hex.EncodeToString(sum[:20])
}

func (m Mapping) check() error {
	for _, path := range []string{m.GlobalMapPath, m.PodMapDir} {
		if err := checkDir(path); err != nil {
			return err
		}
	}
	for _, element := range []string{m.LinkName, m.PodUID} {
		if element == "" || element == "." || element == ".." || strings.ContainsAny(element, "/\x00\n") {
			return fmt.Errorf("%q: give one element of a path: %w", element, mount.ErrInvalid)
		}
	}
	return nil
}

func checkDir(path string) error {
	if !filepath.IsAbs(path) || filepath.Clean(path) != path || path == "/" {
		return fmt.Errorf("%q: give an absolute, clean path of a directory: %w", path, mount.ErrInvalid)
	}
	return nil
}

// Options configures a [Mapper]. The zero value is ready to use.
type Options struct {
	// Mounter makes the bind mounts; nil means a mount.Mounter of the Mapper's own.
	Mounter mount.Interface
	// Loops makes the locks; nil means a loop.Manager of the Mapper's own.
	Loops *loop.Manager
}

// Mapper maps devices. Make it with [New]. Its methods may be called from several goroutines at once, but for one mapping only from one
// goroutine at a time. It keeps nothing in memory about mappings.
type Mapper struct {
	mounter mount.Interface
	loops   *loop.Manager
}

// New returns a Mapper. It does nothing yet.
func New(options Options) *Mapper {
	m := &Mapper{mounter: options.Mounter, loops: options.Loops}
	if m.mounter == nil {
		m.mounter = mount.New(mount.Options{})
	}
	if m.loops == nil {
		m.loops = loop.New(loop.Options{})
	}
	return m
}

// MapDevice locks the device, checks that no other program uses it, binds it and makes the link. It keeps the parts of the mapping that
// exist and are right. If the device is in use, the error matches loop.ErrInUse, unless the same device is mapped for another pod in
// GlobalMapPath: that pod may use it. If another device is bound at the same path, or for another pod in GlobalMapPath, the error
// matches mount.ErrForeign: all pods of a volume get the same device.
func (m *Mapper) MapDevice(ctx context.Context, mapping Mapping) error {
	err := mapping.check()
	if err == nil {
		err = m.mapDevice(ctx, mapping)
	}
	if err != nil {
		return fmt.Errorf("mapping device %q for pod %q: %w", mapping.DevicePath, mapping.PodUID, err)
	}
	return nil
}

// UnmapDevice removes the link, the bind mount and the lock. Missing ones are no error. While a process has the device open through the
// bind mount, the bind mount and the lock stay, and the error matches unix.EBUSY.
func (m *Mapper) UnmapDevice(ctx context.Context, mapping Mapping) error {
	err := mapping.check()
	if err == nil {
		err = m.unmapDevice(ctx, mapping)
	}
	if err != nil {
		return fmt.Errorf("unmapping the device of pod %q at %q: %w", mapping.PodUID, mapping.GlobalMapPath, err)
	}
	return nil
}

// MappedPods returns the sorted UIDs of the pods for which a device is bound in globalMapPath; none if the directory does not exist.
func (m *Mapper) MappedPods(ctx context.Context, globalMapPath string) ([]string, error) {
	return m.mappedPods(ctx, globalMapPath)
}

// ResolveDevice returns the path of the block device at devicePath, with symbolic links resolved. If it is no block device, the error
// matches [ErrNotDevice].
func (m *Mapper) ResolveDevice(_ context.Context, devicePath string) (string, error) {
	path, err := resolveDevice(devicePath)
	if err != nil {
		return "", fmt.Errorf("device %q: %w", devicePath, err)
	}
	return path, nil
}

// RemoveMapPath removes the directory of a volume's binds by rmdir, and nothing in it: one in which something is left is
// an error that matches unix.ENOTEMPTY. It succeeds when the directory is gone. No element of the path may be a symbolic
// link.
func (m *Mapper) RemoveMapPath(_ context.Context, globalMapPath string) error {
	err := checkDir(globalMapPath)
	if err == nil {
		err = removeDir(globalMapPath)
	}
	if err != nil {
		return fmt.Errorf("removing the directory %q of the volume's binds: %w", globalMapPath, err)
	}
	return nil
}
