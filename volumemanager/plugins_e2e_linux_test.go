package volumemanager

import (
	"context"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/plugins/emptydir"
	"github.com/volumekit/volumekit/plugins/files"
	"github.com/volumekit/volumekit/plugins/hostpath"
	"github.com/volumekit/volumekit/plugins/local"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// edition is the content of every object, which changes.
type edition struct{ text atomic.Pointer[string] }

func (e *edition) set(text string) { e.text.Store(&text) }

func (e *edition) ConfigMap(context.Context, string, string) (*v1.ConfigMap, error) {
	return &v1.ConfigMap{Data: map[string]string{"text": *e.text.Load()}}, nil
}

func (e *edition) Secret(context.Context, string, string) (*v1.Secret, error) {
	return &v1.Secret{Data: map[string][]byte{"text": []byte(*e.text.Load())}}, nil
}

// pluginsNode is a node with the plugins of directories and files, and a pod with a volume of each.
type pluginsNode struct {
	realNode
	t       *testing.T
	objects *edition
	disk    string // of the local volume
	pod     *v1.Pod
	claims  *store.Memory
}

func newPluginsNode(t *testing.T) *pluginsNode {
	t.Helper()
	n := &pluginsNode{
		realNode: newRealNode(t), t: t, objects: &edition{}, disk: t.TempDir(), claims: store.NewMemory(store.MemoryOptions{}),
	}
	host, err := volume.NewHost(volume.HostOptions{RootDir: filepath.Join(n.root, "lib"), NodeName: testNode})
	require.NoError(t, err)
	paths := hostpath.New(hostpath.Options{BaseDir: filepath.Join(t.TempDir(), "volumes")})
	n.plugins = volume.NewVolumePluginMgr(host)
	require.NoError(t, n.plugins.InitPlugins(t.Context(), paths, local.New(local.Options{}), emptydir.New(emptydir.Options{}),
		files.NewConfigMap(n.objects, files.Options{}), files.NewSecret(n.objects, files.Options{}),
		files.NewDownwardAPI(nil, files.Options{}),
		files.NewProjected(files.Getters{ConfigMaps: n.objects, Secrets: n.objects}, files.Options{})))
	n.options.Store = n.claims
	n.create(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: string(testNode), Labels: map[string]string{v1.LabelHostname: string(testNode)}}})
	n.bind("local", &v1.PersistentVolume{Spec: v1.PersistentVolumeSpec{
		PersistentVolumeSource: v1.PersistentVolumeSource{Local: &v1.LocalVolumeSource{Path: n.disk}},
		NodeAffinity: &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
			MatchExpressions: []v1.NodeSelectorRequirement{{Key: v1.LabelHostname, Operator: v1.NodeSelectorOpIn, Values: []string{string(testNode)}}},
		}}}},
	}})
	n.bind("provisioned", n.provision(paths))
	n.pod = n.newPod()
	return n
}

func (n *pluginsNode) provision(plugin volume.ProvisionableVolumePlugin) *v1.PersistentVolume {
	n.t.Helper()
	claim := claimOfName("provisioned")
	claim.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}
	claim.Spec.Resources.Requests = v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Mi")}
	provisioner, err := plugin.NewProvisioner(volume.VolumeOptions{PVName: "pv-provisioned", PVC: claim})
	require.NoError(n.t, err)
	pv, err := provisioner.Provision(n.t.Context(), nil, nil)
	require.NoError(n.t, err)
	return pv
}

// bind makes a claim that has the volume.
func (n *pluginsNode) bind(name string, pv *v1.PersistentVolume) {
	n.t.Helper()
	claim := claimOfName(name)
	claim.UID, claim.Spec.VolumeName, claim.Status.Phase = types.UID("claim-"+name), "pv-"+name, v1.ClaimBound
	pv.Name, pv.Spec.AccessModes = "pv-"+name, claim.Spec.AccessModes
	n.create(claim)
	created, err := store.Get[*v1.PersistentVolumeClaim](n.t.Context(), n.claims, "default", name)
	require.NoError(n.t, err)
	pv.Spec.ClaimRef = &v1.ObjectReference{Namespace: "default", Name: name, UID: created.UID}
	n.create(pv)
}

func (n *pluginsNode) create(object runtime.Object) {
	n.t.Helper()
	_, err := n.claims.Create(n.t.Context(), object)
	require.NoError(n.t, err)
}

func (n *pluginsNode) newPod() *v1.Pod {
	pod := podOf("web", "local", "provisioned", "-config", "-secret", "-about", "-all", "-scratch", "-memory")
	reference, limit := v1.LocalObjectReference{Name: "object"}, resource.MustParse("1Mi")
	for i, source := range map[int]v1.VolumeSource{
		2: {ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: reference}},
		3: {Secret: &v1.SecretVolumeSource{SecretName: "object"}},
		4: {DownwardAPI: &v1.DownwardAPIVolumeSource{Items: []v1.DownwardAPIVolumeFile{
			{Path: "text", FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.annotations['text']"}},
		}}},
		5: {Projected: &v1.ProjectedVolumeSource{Sources: []v1.VolumeProjection{
			{Secret: &v1.SecretProjection{LocalObjectReference: reference}},
		}}},
		6: {EmptyDir: &v1.EmptyDirVolumeSource{}},
		7: {EmptyDir: &v1.EmptyDirVolumeSource{Medium: v1.StorageMediumMemory, SizeLimit: &limit}},
	} {
		pod.Spec.Volumes[i].VolumeSource = source
	}
	return pod
}

// edit changes what the objects hold, and the pod.
func (n *pluginsNode) edit(text string) {
	n.objects.set(text)
	n.pod = n.pod.DeepCopy()
	n.pod.Annotations = map[string]string{"text": text}
}

// sources returns where the container finds each volume on the host.
func (n *pluginsNode) sources(m *Manager) map[string]string {
	n.t.Helper()
	volumes, err := m.ContainerMounts(n.t.Context(), n.pod, "main")
	require.NoError(n.t, err)
	found := map[string]string{}
	for _, mount := range volumes.Mounts {
		found[filepath.Base(mount.Target)] = mount.Source
		isOwn := mount.Target != "/local" && mount.Target != "/provisioned" && mount.Target != "/scratch" && mount.Target != "/memory"
		assert.Equal(n.t, isOwn, mount.ReadOnly, mount.Target)
	}
	require.Len(n.t, found, len(n.pod.Spec.Volumes))
	return found
}

// expectText fails unless the volumes that are files hold text, which a refresh, for which no wait waits, may have to bring.
func (n *pluginsNode) expectText(m *Manager, text string) {
	n.t.Helper()
	at := n.sources(m)
	for _, name := range []string{"config", "secret", "about", "all"} {
		require.Eventually(n.t, func() bool { return text == read(n.t, filepath.Join(at[name], "text")) }, time.Minute, 5*time.Millisecond, name)
	}
}

func TestPluginsOfDirectoriesAndFilesUnderAManager(t *testing.T) {
	n := newPluginsNode(t)
	n.edit("one")
	first, stop := n.start(t)
	require.NoError(t, first.AddPod(t.Context(), n.pod))
	require.NoError(t, first.WaitForAttachAndMount(t.Context(), n.pod))
	n.expectText(first, "one")
	at := n.sources(first)
	for _, name := range []string{"local", "provisioned", "scratch", "memory"} {
		require.NoError(t, os.WriteFile(filepath.Join(at[name], "kept"), []byte(name), 0o600))
	}
	require.ErrorIs(t, os.WriteFile(filepath.Join(at["memory"], "big"), make([]byte, 2<<20), 0o600), unix.ENOSPC)
	assert.Equal(t, "local", read(t, filepath.Join(n.disk, "kept")))
	stop()

	second, stop := n.start(t)
	n.edit("two")
	require.NoError(t, second.AddPod(t.Context(), n.pod))
	second.PodsComplete()
	require.NoError(t, second.WaitForAttachAndMount(t.Context(), n.pod))
	n.expectText(second, "two")
	n.edit("three")
	require.NoError(t, second.UpdatePod(t.Context(), n.pod))
	n.expectText(second, "three")
	assert.Equal(t, at, n.sources(second))
	for _, name := range []string{"local", "provisioned", "scratch", "memory"} {
		assert.Equal(t, name, read(t, filepath.Join(at[name], "kept")))
	}
	require.NoError(t, second.RemovePod(n.pod.UID))
	require.NoError(t, second.WaitForNodeEmpty(t.Context()))
	stop()

	for name, path := range at {
		if name == "provisioned" {
			assert.FileExists(t, filepath.Join(path, "kept"))
		} else {
			assert.NoDirExists(t, path)
		}
	}
	assert.FileExists(t, filepath.Join(n.disk, "kept"))
	left, err := os.ReadDir(filepath.Join(n.root, "lib", "pods"))
	require.NoError(t, err)
	assert.Empty(t, left)
}
