package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// envAll has a hundred pods start at once, and not some of them.
const envAll = "CONTAINERD_ALL"

// one is a pod of many: its container says that it has started if it sees all of its volumes.
const one = `
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: NAME}
spec: {accessModes: [ReadWriteOnce], storageClassName: images, resources: {requests: {storage: 4Mi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: NAME}
spec:
  terminationGracePeriodSeconds: 0
  containers:
    - name: NAME
      image: IMAGE
      command: [sh, -c, "[ -s /color ] && [ -s /keys/word ] && [ -s /about/name ] && echo x >/scratch/f && echo x >/data/f && echo x >/memory/f && echo NAME >>/host/starts; exec /bin/busybox sleep 100000"]
      volumeMounts:
        - {name: scratch, mountPath: /scratch}
        - {name: memory, mountPath: /memory}
        - {name: settings, mountPath: /color, subPath: color}
        - {name: keys, mountPath: /keys}
        - {name: about, mountPath: /about}
        - {name: host, mountPath: /host}
        - {name: data, mountPath: /data}
  volumes:
    - {name: scratch, emptyDir: {}}
    - {name: memory, emptyDir: {medium: Memory}}
    - {name: settings, configMap: {name: settings}}
    - {name: keys, secret: {secretName: keys}}
    - {name: about, downwardAPI: {items: [{path: name, fieldRef: {fieldPath: metadata.name}}]}}
    - {name: host, hostPath: {path: HOST/host}}
    - {name: data, persistentVolumeClaim: {claimName: NAME}}
`

// Many pods start at once, and the agent is killed in the middle of it, and of their end. Every container starts once, with its volumes,
// and nothing is left.
func TestManyPodsStartOnce(t *testing.T) {
	n := 10
	if os.Getenv(envAll) != "" {
		n = 100
	}
	h := newHost(t)
	h.prepare()
	var names, manifests []string
	for i := range n {
		name := fmt.Sprintf("p%03d", i)
		names = append(names, name)
		manifests = append(manifests, strings.ReplaceAll(one, "NAME", name))
	}
	h.startAgent()
	h.apply("pods", strings.Join(manifests, "---"))
	for _, part := range []int{4, 2} {
		h.until("some containers have started", func() bool { return len(h.tryStarts()) >= n/part })
		h.kill(h.agent)
		assert.Less(t, len(h.tryStarts()), n, "the agent is killed in the middle")
		h.startAgent()
	}
	h.until("all containers have started", func() bool {
		return len(h.tryStarts()) >= n && h.logged("container is started") > 0 && len(h.tasks()) == n
	})
	starts := h.startsOf()
	slices.Sort(starts)
	require.Equal(t, names, starts)
	for _, state := range h.tasks() {
		require.Equal(t, "RUNNING", state)
	}

	h.apply("pods", "")
	h.until("some containers have ended", func() bool { return len(h.tasks()) < n })
	h.kill(h.agent)
	h.apply("objects", "")
	h.startAgent()
	h.untilNothing()
	h.stopAgent()
	assert.Len(t, h.startsOf(), n)
}

// tryStarts is startsOf while there may be none.
func (h *host) tryStarts() []string {
	h.t.Helper()
	if _, err := os.Stat(h.path("host/starts")); err != nil {
		return nil
	}
	return h.startsOf()
}
