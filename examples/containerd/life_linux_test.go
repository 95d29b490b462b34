package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// objects are what the pods of the tests use.
const objects = `
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {color: red, size: large}
---
apiVersion: v1
kind: Secret
metadata: {name: keys}
data: {word: b3BlbiBzZXNhbWU=}
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: images}
provisioner: volumekit.io/loop-block
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: shelf}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce]
  persistentVolumeReclaimPolicy: Retain
  local: {path: HOST/shelf}
  nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [node-1]}]}]}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: shelf}
spec: {accessModes: [ReadWriteOnce], storageClassName: "", volumeName: shelf, resources: {requests: {storage: 1Gi}}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec: {accessModes: [ReadWriteOnce], storageClassName: images, resources: {requests: {storage: 16Mi}}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: disk}
spec: {accessModes: [ReadWriteOnce], storageClassName: images, volumeMode: Block, resources: {requests: {storage: 8Mi}}}
`

// everything is a pod with volumes of every kind.
const everything = `
apiVersion: v1
kind: Pod
metadata: {name: everything, labels: {tier: front}}
spec:
  terminationGracePeriodSeconds: 1
  securityContext: {fsGroup: 4321}
  initContainers:
    - name: prepare
      image: IMAGE
      command: [sh, -c, "echo prepared >/scratch/prepared; /bin/busybox mkdir /scratch/in; echo inner >/scratch/in/file"]
      volumeMounts: [{name: scratch, mountPath: /scratch}]
  containers:
    - name: main
      image: IMAGE
      command: [sh, -c, "echo started >>/host/starts; trap 'exit 0' TERM; while :; do /bin/busybox sleep 1000 & wait; done"]
      volumeMounts:
        - {name: scratch, mountPath: /scratch}
        - {name: memory, mountPath: /memory}
        - {name: settings, mountPath: /settings}
        - {name: keys, mountPath: /keys}
        - {name: about, mountPath: /about}
        - {name: mixed, mountPath: /mixed}
        - {name: host, mountPath: /host, mountPropagation: HostToContainer}
        - {name: shelf, mountPath: /shelf}
        - {name: data, mountPath: /data}
        - {name: scratch, mountPath: /read, readOnly: true}
        - {name: scratch, mountPath: /inner, subPath: in}
        - {name: settings, mountPath: /color, subPath: color}
        - {name: data, mountPath: /new, subPathExpr: made/$(TIER), readOnly: true}
      env: [{name: TIER, value: front}]
      volumeDevices: [{name: disk, devicePath: /dev/disk}]
    - name: privileged
      image: IMAGE
      securityContext: {privileged: true}
      command: [sh, -c, "trap 'exit 0' TERM; while :; do /bin/busybox sleep 1000 & wait; done"]
      volumeMounts:
        - {name: host, mountPath: /host, mountPropagation: Bidirectional}
        - {name: data, mountPath: /data}
  volumes:
    - {name: scratch, emptyDir: {}}
    - {name: memory, emptyDir: {medium: Memory, sizeLimit: 1Mi}}
    - {name: settings, configMap: {name: settings}}
    - {name: keys, secret: {secretName: keys, defaultMode: 0400}}
    - {name: about, downwardAPI: {items: [{path: labels, fieldRef: {fieldPath: metadata.labels}}]}}
    - {name: mixed, projected: {sources: [{configMap: {name: settings, items: [{key: size, path: size}]}}, {secret: {name: keys}}]}}
    - {name: host, hostPath: {path: HOST/host, type: Directory}}
    - {name: shelf, persistentVolumeClaim: {claimName: shelf}}
    - {name: data, persistentVolumeClaim: {claimName: data}}
    - {name: disk, persistentVolumeClaim: {claimName: disk}}
`

// prepare makes what the manifests name on the host.
func (h *host) prepare() {
	h.t.Helper()
	for _, dir := range []string{"host", "shelf"} {
		require.NoError(h.t, os.MkdirAll(h.path(dir), 0o755))
	}
	h.apply("objects", objects)
}

// A pod has volumes of every kind, and each container sees of them what the pod says.
func TestAPodHasVolumesOfEveryKind(t *testing.T) {
	h := newHost(t)
	h.prepare()
	h.startAgent()
	h.apply("pod", everything)
	h.untilRuns("main", "privileged")

	for script, want := range map[string]string{
		"$busybox cat /scratch/prepared":                    "prepared",
		"$busybox cat /settings/color /color":               "redred",
		"$busybox cat /keys/word":                           "open sesame",
		"$busybox stat -L -c %a:%g /keys/word":              "440:4321",
		"$busybox cat /about/labels":                        `tier="front"`,
		"$busybox cat /mixed/size /mixed/word":              "largeopen sesame",
		"$busybox cat /inner/file /read/in/file":            "inner\ninner",
		"echo w >/memory/f; $busybox stat -f -c %T /memory": "tmpfs",
		"echo w >/shelf/f && $busybox cat /shelf/f":         "w",
		"echo w >/data/f && $busybox stat -c %g /data":      "4321",
		"$busybox id -G":                                    "0 4321",
		"$busybox ls -d /new":                               "/new",
		"$busybox stat -c %F /dev/disk":                     "block special file",
		"$busybox cat /host/starts":                         "started",
		"echo raw | $busybox dd of=/dev/disk bs=512 conv=sync 2>/dev/null; $busybox sync; $busybox head -c 3 /dev/disk": "raw",
	} {
		assert.Equal(t, want, h.sh("main", script), script)
	}
	assert.Equal(t, "w", h.sh("privileged", "$busybox cat /data/f"), "two containers share a volume")
	written, err := os.ReadFile(h.path("shelf/f"))
	require.NoError(t, err)
	assert.Equal(t, "w\n", string(written))
	assert.DirExists(t, h.outside("data", "made/front"))

	for _, path := range []string{"/settings/x", "/keys/x", "/about/x", "/mixed/x", "/color", "/read/x", "/new/x"} {
		h.refused("main", "Read-only file system", "echo x >"+path)
	}
	h.refused("main", "No space left", "$busybox dd if=/dev/zero of=/memory/big bs=1k count=2000")
	h.refused("privileged", "", "$busybox cat /dev/disk")

	// What a privileged container mounts reaches the host, and from there the other container.
	h.sh("privileged", "$busybox mkdir /host/mounted && $busybox mount -t tmpfs none /host/mounted && echo seen >/host/mounted/file")
	assert.Equal(t, "seen", h.sh("main", "$busybox cat /host/mounted/file"))
	h.refused("main", "", "$busybox umount /host/mounted")
	require.NoError(t, h.namespace.Do(func() error { return unix.Unmount(h.path("host/mounted"), 0) }))
	h.refused("main", "No such file", "$busybox cat /host/mounted/file")

	h.apply("pod", "")
	h.apply("objects", "")
	h.untilNothing()
	h.stopAgent()
	assert.FileExists(t, h.path("shelf/f"), "the content of a local volume stays")
}

// outside returns where the host sees a directory of a persistent volume.
func (h *host) outside(volume, path string) string {
	h.t.Helper()
	var found string
	for _, m := range h.mounts() {
		if _, at, _ := strings.Cut(m, " "); strings.Contains(at, "/loop-block/mounts/") {
			found = filepath.Join(fmt.Sprintf("/proc/%d/root", h.agent.Process.Pid), at, path)
		}
	}
	require.NotEmpty(h.t, found, volume)
	return found
}

// A pod with a user namespace: its root is an ordinary user of the host, and owns what root owns in its volumes.
const mapped = `
apiVersion: v1
kind: Pod
metadata: {name: mapped}
spec:
  hostUsers: false
  terminationGracePeriodSeconds: 1
  containers:
    - name: mapped
      image: IMAGE
      command: [sh, -c, "trap 'exit 0' TERM; while :; do /bin/busybox sleep 1000 & wait; done"]
      volumeMounts:
        - {name: scratch, mountPath: /scratch}
        - {name: scratch, mountPath: /read, readOnly: true}
        - {name: memory, mountPath: /memory}
        - {name: keys, mountPath: /keys}
        - {name: settings, mountPath: /color, subPath: color}
        - {name: host, mountPath: /host}
        - {name: shelf, mountPath: /shelf}
        - {name: data, mountPath: /data}
        - {name: data, mountPath: /part, subPath: part}
  volumes:
    - {name: scratch, emptyDir: {}}
    - {name: memory, emptyDir: {medium: Memory}}
    - {name: settings, configMap: {name: settings}}
    - {name: keys, secret: {secretName: keys, defaultMode: 0400}}
    - {name: host, hostPath: {path: HOST/host}}
    - {name: shelf, persistentVolumeClaim: {claimName: shelf}}
    - {name: data, persistentVolumeClaim: {claimName: data}}
`

func TestAPodHasAUserNamespace(t *testing.T) {
	if _, err := os.Stat("/proc/self/ns/user"); err != nil {
		t.Skip("missing: user namespaces")
	}
	h := newHost(t)
	h.prepare()
	h.apply("pod", mapped)
	h.startAgent()
	h.untilRuns("mapped")

	assert.Equal(t, "0 1048576 65536", strings.Join(strings.Fields(h.sh("mapped", "$busybox cat /proc/self/uid_map")), " "))
	var stat unix.Stat_t
	require.NoError(t, unix.Stat(fmt.Sprintf("/proc/%d", h.pid("mapped")), &stat))
	assert.EqualValues(t, 1<<20, stat.Uid, "root in the container has no rights on the host")
	for _, dir := range []string{"/scratch", "/memory", "/host", "/shelf", "/data", "/part"} {
		assert.Equal(t, "0:0", h.sh("mapped", "echo w >"+dir+"/f && $busybox stat -c %u:%g "+dir+"/f"), dir)
	}
	assert.Equal(t, "open sesame", h.sh("mapped", "$busybox cat /keys/word"), "of root alone")
	assert.Equal(t, "red", h.sh("mapped", "$busybox cat /color"))
	for _, path := range []string{"/read/x", "/keys/x", "/color"} {
		h.refused("mapped", "Read-only file system", "echo x >"+path)
	}
	for _, path := range []string{h.path("host/f"), h.path("shelf/f"), h.outside("data", "part/f")} {
		require.NoError(t, unix.Stat(path, &stat))
		assert.Zero(t, stat.Uid, "on the host it belongs to root: %s", path)
	}

	// A block device has no owner that a mount could map.
	h.apply("pod", strings.NewReplacer("name: mapped", "name: device", "volumeMounts:", "volumeDevices: [{name: disk, devicePath: /dev/disk}]\n      volumeMounts:",
		"\n  volumes:", "\n  volumes:\n    - {name: disk, persistentVolumeClaim: {claimName: disk}}").Replace(mapped))
	h.until("the agent says why not", func() bool { return h.logged("a block device has no owner that can be mapped") > 0 })
	h.apply("pod", "")
	h.apply("objects", "")
	h.untilNothing()
	h.stopAgent()
}
