package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// measured is a pod with eight volumes, one of each kind, or with none. Its claims are bound before.
const measured = `
apiVersion: v1
kind: Pod
metadata: {name: NAME}
spec:
  terminationGracePeriodSeconds: 0
  containers:
    - name: NAME
      image: IMAGE
      command: [/bin/busybox, sleep, "100000"]
`

const eight = `
      volumeMounts:
        - {name: scratch, mountPath: /scratch}
        - {name: settings, mountPath: /settings}
        - {name: keys, mountPath: /keys}
        - {name: about, mountPath: /about}
        - {name: mixed, mountPath: /mixed}
        - {name: host, mountPath: /host}
        - {name: data, mountPath: /data}
      volumeDevices: [{name: disk, devicePath: /dev/disk}]
  volumes:
    - {name: scratch, emptyDir: {}}
    - {name: settings, configMap: {name: settings}}
    - {name: keys, secret: {secretName: keys}}
    - {name: about, downwardAPI: {items: [{path: name, fieldRef: {fieldPath: metadata.name}}]}}
    - {name: mixed, projected: {sources: [{configMap: {name: settings, items: [{key: size, path: size}]}}, {secret: {name: keys}}]}}
    - {name: host, hostPath: {path: HOST/host}}
    - {name: data, persistentVolumeClaim: {claimName: data}}
    - {name: disk, persistentVolumeClaim: {claimName: disk}}
`

var started = regexp.MustCompile(`container is started.* volumes=(\S+) all=(\S+)`)

// BenchmarkPodStart measures the start of a pod with eight volumes of every kind beside one without, from the moment at which the agent
// begins with it until its process is started. The bare mounts are the system calls for the same mounts and loop devices, and nothing else.
// The three take turns, so that other work on the machine hits all alike.
func BenchmarkPodStart(b *testing.B) {
	h := newHost(b)
	h.prepare()
	h.startAgent()
	start := func(name, manifest string) (volumes, all time.Duration) {
		h.apply("pod", strings.ReplaceAll(manifest, "NAME", name))
		h.untilRuns(name)
		h.until("the agent has started it", func() bool { return h.logged("container="+name+" ") > 0 })
		h.apply("pod", "")
		h.until("it is gone", func() bool { return h.logged("pod is gone\" pod=default/"+name+"\n") > 0 })
		log, err := os.ReadFile(h.log(h.program))
		require.NoError(b, err)
		found := started.FindAllStringSubmatch(string(log), -1)
		last := found[len(found)-1]
		volumes, err = time.ParseDuration(last[1])
		require.NoError(b, err)
		all, err = time.ParseDuration(last[2])
		require.NoError(b, err)
		return volumes, all
	}
	start("first", measured+eight) // the claims get their volumes
	took := map[string][]time.Duration{}
	for i := range max(b.N, 20) {
		_, all := start(fmt.Sprintf("none-%d", i), measured)
		took["none"] = append(took["none"], all)
		volumes, all := start(fmt.Sprintf("eight-%d", i), measured+eight)
		took["eight"], took["volumes"] = append(took["eight"], all), append(took["volumes"], volumes)
		took["bare"] = append(took["bare"], h.bareMounts())
	}
	for _, name := range []string{"none", "eight", "volumes", "bare"} {
		slices.Sort(took[name])
		b.ReportMetric(float64(took[name][len(took[name])/2].Microseconds())/1000, name+"-ms")
	}
	median := func(name string) time.Duration { return took[name][len(took[name])/2] }
	b.ReportMetric(float64((median("eight")-median("none")-median("bare")).Microseconds())/1000, "added-beyond-bare-ms")
	h.apply("objects", "")
	h.untilNothing()
}

// bareMounts returns how long the mounts of such a pod take: a tmpfs each for three volumes, a loop device each for two, ext4 on the
// first, and binds of both for the pod.
func (h *host) bareMounts() time.Duration {
	h.t.Helper()
	images, err := filepath.Glob(h.path("root/volumes/plugins/volumekit.io/loop-block/images/*.img"))
	require.NoError(h.t, err)
	require.Len(h.t, images, 2)
	slices.SortFunc(images, func(a, b string) int { return int(sizeOf(h.t, b) - sizeOf(h.t, a)) }) // the one with ext4 first
	dirs := []string{"m/keys", "m/about", "m/mixed", "m/staged", "m/data"}
	for _, dir := range dirs {
		require.NoError(h.t, os.MkdirAll(h.path(dir), 0o700))
	}
	require.NoError(h.t, os.WriteFile(h.path("m/disk"), nil, 0o600))
	var took time.Duration
	require.NoError(h.t, h.namespace.Do(func() error {
		begun := time.Now()
		var errs []error
		for _, dir := range dirs[:3] {
			errs = append(errs, unix.Mount("tmpfs", h.path(dir), "tmpfs", 0, "mode=755"))
		}
		filesystem, err := attach(images[0])
		if err != nil {
			return err
		}
		disk, err := attach(images[1])
		if err != nil {
			return errors.Join(err, filesystem.Close())
		}
		errs = append(errs, unix.Mount(filesystem.Name(), h.path("m/staged"), "ext4", 0, ""),
			unix.Mount(h.path("m/staged"), h.path("m/data"), "", unix.MS_BIND, ""), unix.Mount(disk.Name(), h.path("m/disk"), "", unix.MS_BIND, ""))
		took = time.Since(begun)
		for _, name := range []string{"m/disk", "m/data", "m/staged", "m/mixed", "m/about", "m/keys"} {
			errs = append(errs, unix.Unmount(h.path(name), 0))
		}
		return errors.Join(append(errs, filesystem.Close(), disk.Close())...)
	}))
	return took
}

func sizeOf(t testing.TB, path string) int64 {
	info, err := os.Stat(path)
	require.NoError(t, err)
	return info.Size()
}

// attach returns a loop device that shows a file, and is detached when it is closed and unmounted.
func attach(path string) (*os.File, error) {
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer control.Close()
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	for {
		number, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, err
		}
		device, err := os.OpenFile(fmt.Sprintf("/dev/loop%d", number), os.O_RDWR, 0)
		if err != nil {
			return nil, err
		}
		config := unix.LoopConfig{Fd: uint32(file.Fd())}
		config.Info.Flags = unix.LO_FLAGS_AUTOCLEAR
		err = unix.IoctlLoopConfigure(int(device.Fd()), &config)
		if err == nil {
			return device, nil
		}
		if err := errors.Join(err, device.Close()); !errors.Is(err, unix.EBUSY) {
			return nil, err
		}
	}
}
