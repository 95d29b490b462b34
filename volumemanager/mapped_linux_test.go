//go:build dmguest

package volumemanager

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/mount/loop"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volumemanager/internal/health"
)

// These tests run in the guest of internal/guest, whose kernel has the device mapper.

// The requests of the device mapper, from include/uapi/linux/dm-ioctl.h.
const (
	dmCreate  = 0xc138fd03
	dmRemove  = 0xc138fd04
	dmSuspend = 0xc138fd06 // and resume
	dmLoad    = 0xc138fd09

	dmSuspendFlag = 1 << 1
	dmSkipLockFS  = 1 << 10
	dmNoFlush     = 1 << 11
)

// mapped is a device whose faults the test chooses.
type mapped struct {
	t       *testing.T
	control *os.File
	name    string
	path    string
	below   loop.Device
	sectors int64
}

// newMapped maps a new device to another one, as it is.
func newMapped(t *testing.T, below loop.Device) *mapped {
	t.Helper()
	require.NoError(t, os.MkdirAll("/dev/mapper", 0o755))
	control := "/dev/mapper/control"
	if _, err := os.Stat(control); err != nil {
		require.NoError(t, unix.Mknod(control, unix.S_IFCHR|0o600, int(unix.Mkdev(10, 236))))
	}
	file, err := os.OpenFile(control, os.O_RDWR, 0)
	require.NoError(t, err)
	device, err := os.Open(below.Path)
	require.NoError(t, err)
	defer device.Close()
	size, err := device.Seek(0, 2)
	require.NoError(t, err)
	m := &mapped{t: t, control: file, name: fmt.Sprintf("test-%d", below.Number), below: below, sectors: size / 512}
	m.path = "/dev/" + m.name
	number := m.call(dmCreate, 0, nil)
	t.Cleanup(func() {
		m.resume()
		m.call(dmRemove, 0, nil)
		assert.NoError(t, os.Remove(m.path))
		assert.NoError(t, file.Close())
	})
	require.NoError(t, unix.Mknod(m.path, unix.S_IFBLK|0o600, int(number)))
	m.whole()
	return m
}

// call makes a request, with one target where there is one, and returns the number of the device.
func (m *mapped) call(request uintptr, flags uint32, target []byte) uint64 {
	m.t.Helper()
	block := make([]byte, 312, 1024)
	binary.NativeEndian.PutUint32(block[0:], 4) // the version, 4.0.0
	binary.NativeEndian.PutUint32(block[16:], 312)
	binary.NativeEndian.PutUint32(block[28:], flags)
	copy(block[48:], m.name)
	if target != nil {
		binary.NativeEndian.PutUint32(block[20:], 1)
		block = append(block, target...)
	}
	binary.NativeEndian.PutUint32(block[12:], uint32(len(block)))
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, m.control.Fd(), request, uintptr(unsafe.Pointer(&block[0])))
	require.Zero(m.t, errno, "request %#x: %v", request, errno)
	return binary.NativeEndian.Uint64(block[40:])
}

// becomes gives the device another target, without waiting for what is written.
func (m *mapped) becomes(kind, parameters string) {
	m.t.Helper()
	target := make([]byte, 40)
	binary.NativeEndian.PutUint64(target[8:], uint64(m.sectors))
	copy(target[24:], kind)
	target = append(target, append([]byte(parameters), make([]byte, 8-len(parameters)%8)...)...)
	m.call(dmLoad, 0, target)
	m.suspend()
	m.resume()
}

func (m *mapped) suspend() { m.call(dmSuspend, dmSuspendFlag|dmSkipLockFS|dmNoFlush, nil) }
func (m *mapped) resume()  { m.call(dmSuspend, 0, nil) }

func (m *mapped) at(parameters string) string {
	return fmt.Sprintf("%d:%d 0%s", m.below.Major, m.below.Minor, parameters)
}

func (m *mapped) whole()  { m.becomes("linear", m.at("")) }
func (m *mapped) broken() { m.becomes("error", "") }
func (m *mapped) slow()   { m.becomes("delay", m.at(" 50")) }

// flaky fails every read and write until it is whole again.
func (m *mapped) flaky() { m.becomes("flakey", m.at(" 0 3600")) }

// newMappedNode is newDeviceNode with a device that can fail.
func newMappedNode(t *testing.T) (deviceNode, *mapped) {
	t.Helper()
	n := newDeviceNode(t)
	loops := loop.New(loop.Options{})
	below, err := loops.Find(t.Context(), n.image)
	require.NoError(t, err)
	m := newMapped(t, below)
	n.pod.Spec.Volumes[0].VolumeSource = v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: m.path}}
	n.options.Backoff.Initial, n.options.Backoff.Max = time.Millisecond, 10*time.Millisecond
	return n, m
}

// fill writes to a file what stays in memory until it is synced.
func fill(t *testing.T, path string) {
	t.Helper()
	require.NoError(t, os.WriteFile(path, bytes.Repeat([]byte("precious"), 1<<17), 0o600))
}

func TestDeviceThatFailsBelowAMountIsToldOf(t *testing.T) {
	for name, fault := range map[string]func(*mapped){"error": (*mapped).broken, "flakey": (*mapped).flaky} {
		t.Run(name, func(t *testing.T) {
			n, m := newMappedNode(t)
			n.run()
			path := n.add(n.pod)
			fill(t, filepath.Join(path, "f"))
			fault(m)
			n.remove(n.pod)
			assert.NoDirExists(t, path)
			lost := n.m.Status().LostData
			require.Len(t, lost, 1)
			assert.Equal(t, n.pod.UID, lost[0].PodUID)
			require.Error(t, lost[0].Err)
		})
	}
}

// TestDeviceThatFailsBeforeItsMountIsTriedAgain and nothing is formatted: what was there is there.
func TestDeviceThatFailsBeforeItsMountIsTriedAgain(t *testing.T) {
	n, m := newMappedNode(t)
	n.run()
	fill(t, filepath.Join(n.add(n.pod), "f"))
	n.remove(n.pod)
	m.flaky()
	require.NoError(t, os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0))
	require.NoError(t, n.m.AddPod(t.Context(), n.pod))
	n.until(n.pod, func(s VolumeStatus) bool { return s.Err != nil && s.Attempts > 1 })
	m.whole()
	require.NoError(t, n.m.WaitForAttachAndMount(t.Context(), n.pod))
	path := n.add(n.pod)
	content, err := os.ReadFile(filepath.Join(path, "f"))
	require.NoError(t, err)
	assert.Len(t, content, 1<<20)
	n.remove(n.pod)
}

func TestSuspendedDeviceDelaysNoOtherVolume(t *testing.T) {
	n, m := newMappedNode(t)
	n.options.PluginTimeouts = map[string]operationexecutor.Timeouts{"example.com/bind": {Unmount: 100 * time.Millisecond}}
	n.run()
	path := n.add(n.pod)
	fill(t, filepath.Join(path, "f"))
	m.suspend()
	require.NoError(t, n.m.RemovePod(n.pod.UID))
	n.until(n.pod, has(ReasonDataLost)) // what is dirty cannot be written, and may be lost
	other := emptyDirPod("other")
	n.add(other)
	n.remove(other)
	m.resume()
	require.NoError(t, n.m.WaitForUnmount(t.Context(), n.pod))
	assert.NoDirExists(t, path)
}

func TestSlowDeviceIsOnlySlow(t *testing.T) {
	n, m := newMappedNode(t)
	n.run()
	path := n.add(n.pod)
	m.slow()
	fill(t, filepath.Join(path, "f"))
	n.remove(n.pod)
	assert.NoDirExists(t, path)
	assert.Empty(t, n.m.Status().LostData)
	assert.Zero(t, n.events.count(health.EventAbnormal))
}
