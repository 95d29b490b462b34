package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/examples/internal/show"
	"github.com/volumekit/volumekit/mount/mounttest"
)

// pod returns a manifest of a pod with one volume and one container that mounts it.
func pod(source string) string {
	return `
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  containers:
    - {name: c, image: none, volumeMounts: [{name: v, mountPath: /v}]}
  volumes:
    - {name: v, ` + source + `}
`
}

// claim returns a manifest of a claim with fields of its own.
func claim(fields string) string {
	return `
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: c}
spec:
  ` + fields + `
`
}

const usesClaim = "persistentVolumeClaim: {claimName: c}"

// Every kind of bad input ends with a message that says what to change, exit code 2, and nothing left behind.
func TestBadManifestsAreRefusedWithWhatToChange(t *testing.T) {
	const request = "accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}"
	for name, c := range map[string]struct {
		manifest string
		says     []string
	}{
		"malformed YAML":       {"kind: [", []string{"document 1", "line 1"}},
		"unknown kind":         {"apiVersion: v1\nkind: Service\nmetadata: {name: s}", []string{`"Service"`, "use "}},
		"kind of no use here":  {"apiVersion: v1\nkind: Secret\nmetadata: {name: s}", []string{"Secret", "give Pod"}},
		"unknown field":        {pod("hostPth: {path: /usr}"), []string{"hostPth"}},
		"no kind":              {"metadata: {name: s}", []string{"apiVersion and a kind"}},
		"no pod":               {claim("{" + request + ", volumeName: x}")[4:], []string{"no Pod", "add one"}},
		"empty":                {"# nothing\n", []string{"no Pod"}},
		"two plugins":          {pod("hostPath: {path: /usr}, emptyDir: {}"), []string{`"v"`, "exactly one source"}},
		"no source":            {pod(""), []string{`"v"`, "give the volume a source"}},
		"plugin not here":      {pod("nfs: {server: s, path: /}"), []string{`"v"`, "nfs", "give the volume a source"}},
		"source beside claim":  {pod(usesClaim+", emptyDir: {}") + claim("{"+request+"}"), []string{"keep one"}},
		"path with ..":         {pod("hostPath: {path: /usr/../etc}"), []string{"/usr/../etc", "'..'"}},
		"relative hostPath":    {pod("hostPath: {path: usr}"), []string{`"v"`, "usr"}},
		"claim missing":        {pod(usesClaim), []string{`"c"`, "not in the manifests", "add that PersistentVolumeClaim"}},
		"claim without volume": {pod(usesClaim) + claim("{"+request+"}"), []string{`"default/c"`, "names no volume and no class", "storageClassName"}},
		"claim names missing volume": {
			pod(usesClaim) + claim("{"+request+", volumeName: x}"), []string{`"x"`, "add that PersistentVolume"},
		},
		"claim names missing class": {
			pod(usesClaim) + claim("{"+request+", storageClassName: x}"), []string{`"x"`, "add that StorageClass"},
		},
		"class without a plugin": {
			pod(usesClaim) + claim("{"+request+", storageClassName: x}") +
				"---\napiVersion: storage.k8s.io/v1\nkind: StorageClass\nmetadata: {name: x}\nprovisioner: example.com/none\n",
			[]string{"example.com/none", "set provisioner"},
		},
		"class with a bad parameter": {
			pod(usesClaim) + claim("{"+request+", storageClassName: x}") +
				"---\napiVersion: storage.k8s.io/v1\nkind: StorageClass\nmetadata: {name: x}\nprovisioner: " + loopBlock +
				"\nparameters: {fstype: ntfs}\n",
			[]string{"ntfs", "use one of"},
		},
		"claim without size": {
			pod(usesClaim) + claim("{accessModes: [ReadWriteOnce], volumeName: x}"), []string{"requests.storage"},
		},
		"claim without access mode": {
			pod(usesClaim) + claim("{resources: {requests: {storage: 1Mi}}, volumeName: x}"), []string{"accessModes"},
		},
		"raw block":            {pod(usesClaim) + claim("{"+request+", volumeName: x, volumeMode: Block}"), []string{"volumeMode"}},
		"bad volume name":      {strings.ReplaceAll(pod("emptyDir: {}"), "name: v,", "name: ../v,"), []string{"../v"}},
		"bad pod name":         {strings.ReplaceAll(pod("emptyDir: {}"), "name: p}", "name: P_}"), []string{"P_"}},
		"pod twice":            {pod("emptyDir: {}") + "---" + pod("emptyDir: {}"), []string{"twice"}},
		"unknown volume":       {strings.Replace(pod("emptyDir: {}"), "name: v,", "name: w,", 1), []string{`"w"`, "add it to spec.volumes"}},
		"relative mountPath":   {strings.ReplaceAll(pod("emptyDir: {}"), "mountPath: /v", "mountPath: v"), []string{"absolute"}},
		"mountPath with ..":    {strings.ReplaceAll(pod("emptyDir: {}"), "mountPath: /v", "mountPath: /a/../b"), []string{"'..'"}},
		"two at one mountPath": {strings.ReplaceAll(pod("emptyDir: {}"), "/v}]", "/v}, {name: v, mountPath: /v/}]"), []string{"two volumes at /v"}},
		"long mountPath":       {strings.ReplaceAll(pod("emptyDir: {}"), "/v}", "/"+strings.Repeat("v", 300)+"}"), []string{"at most 255"}},
		"two pods of one uid": {
			strings.ReplaceAll(pod("emptyDir: {}")+"---"+strings.ReplaceAll(pod("emptyDir: {}"), "name: p}", "name: q}"), "metadata: {", "metadata: {uid: u, "),
			[]string{`"default/q"`, "another metadata.uid"},
		},
		"sub-path":               {strings.ReplaceAll(pod("emptyDir: {}"), "/v}", "/v, subPath: a}"), []string{"subPath", "whole volume"}},
		"no volume in any place": {strings.ReplaceAll(pod("emptyDir: {}"), ", volumeMounts: [{name: v, mountPath: /v}]", ""), []string{"mounts no volume"}},
	} {
		t.Run(name, func(t *testing.T) {
			p := newProgram(t, "-json", "-f", "-")
			p.Stdin = strings.NewReader(c.manifest)
			code := p.run(t)
			assert.Equal(t, show.ExitBadInput, code, p.stderr.String())
			for _, text := range c.says {
				assert.Contains(t, p.stderr.String(), text)
			}
			for line := range strings.Lines(p.stderr.String()) {
				assert.True(t, strings.HasPrefix(line, "quickstart: "), line)
			}
			assert.NotEmpty(t, p.documents(t)["failed"].Error)
		})
	}
}

func TestEveryFaultOfAManifestIsTold(t *testing.T) {
	p := newProgram(t, "-f", "-")
	p.Stdin = strings.NewReader(strings.ReplaceAll(pod("hostPath: {path: /usr/../etc}"), "mountPath: /v", "mountPath: v"))
	require.Equal(t, show.ExitBadInput, p.run(t))
	assert.Equal(t, 2, strings.Count(p.stderr.String(), "quickstart: "), p.stderr.String())
}

func TestBadFlagsAreRefusedWithWhatToChange(t *testing.T) {
	full := write(t, "file", "text")
	for name, c := range map[string]struct {
		args []string
		says string
	}{
		"missing file":     {[]string{"-f", "/no/such/file.yaml"}, "/no/such/file.yaml: no such file or directory: give the path"},
		"directory":        {[]string{"-f", "/usr"}, "is a directory: give the path"},
		"unknown flag":     {[]string{"-x"}, "-x"},
		"stray argument":   {[]string{"pod.yaml"}, "-f pod.yaml"},
		"timeout":          {[]string{"-timeout", "0s"}, "above zero"},
		"root not empty":   {[]string{"-root", "/usr"}, "not empty"},
		"root is a file":   {[]string{"-root", full}, "name a directory"},
		"root in nowhere":  {[]string{"-root", "/no/such/directory"}, "in one that exists"},
		"no such address":  {[]string{"-http", "nowhere"}, "-http nowhere: listen tcp: address nowhere: missing port in address: give one"},
		"root in manifest": {[]string{"-root", "/"}, "not empty"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newProgram(t, c.args...)
			assert.Equal(t, show.ExitBadInput, p.run(t))
			assert.Contains(t, p.stderr.String(), c.says)
			assert.Equal(t, 1, strings.Count(p.stderr.String(), "\n"), "one fault is one line: %s", p.stderr.String())
		})
	}
}

// A root directory that nothing can be made in is refused before anything begins.
func TestRootThatCannotBeWrittenIsRefused(t *testing.T) {
	mounttest.RequireMounts(t)
	root := mountTmpfs(t, unix.MS_RDONLY)
	p := newProgram(t, "-root", root)
	assert.Equal(t, show.ExitBadInput, p.run(t))
	assert.Contains(t, p.stderr.String(), "read-only file system")
	assert.Contains(t, p.stderr.String(), "can be written")
}

// What only the plugin can see when it mounts is bad input all the same.
func TestHostPathOfAnotherTypeIsBadInput(t *testing.T) {
	mounttest.RequireMounts(t)
	p := newProgram(t, "-timeout", "1s", "-f", "-")
	p.Stdin = strings.NewReader(pod("hostPath: {path: /usr, type: File}"))
	assert.Equal(t, show.ExitBadInput, p.run(t))
	assert.Contains(t, p.stderr.String(), "change the path or the type")
}

func TestFaultOfAClaimIsToldOnce(t *testing.T) {
	p := newProgram(t, "-f", "-")
	p.Stdin = strings.NewReader(pod(usesClaim) + claim("{accessModes: [ReadWriteOnce], storageClassName: x, resources: {requests: {storage: 0}}}") +
		"---\napiVersion: storage.k8s.io/v1\nkind: StorageClass\nmetadata: {name: x}\nprovisioner: " + loopBlock + "\n")
	assert.Equal(t, show.ExitBadInput, p.run(t))
	assert.Equal(t, 1, strings.Count(p.stderr.String(), "\n"), p.stderr.String())
}

func TestHelpIsNoError(t *testing.T) {
	p := newProgram(t, "-h")
	assert.Equal(t, 0, p.run(t))
	assert.Contains(t, p.stderr.String(), "-keep")
}
