package volumemanager

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/plugins/emptydir"
	"github.com/volumekit/volumekit/plugins/files"
	"github.com/volumekit/volumekit/plugins/hostpath"
	"github.com/volumekit/volumekit/plugins/local"
	"github.com/volumekit/volumekit/plugins/loopblock"
	"github.com/volumekit/volumekit/plugins/nfs"
	"github.com/volumekit/volumekit/volume"
)

// sourceFields are the fields of a source that a plugin serves.
type sourceFields struct {
	plugin volume.VolumePlugin
	// spec returns a spec that the plugin serves, and its source.
	spec func() (spec *volume.Spec, source any)
	// used are the fields that the plugin uses, or hands to what gets an object; refused those that it refuses when they are set.
	used, refused []string
}

func inPod(source v1.VolumeSource) *volume.Spec {
	return volume.NewSpecFromVolume(&v1.Volume{Name: "v", VolumeSource: source})
}

func inPersistentVolume(source v1.PersistentVolumeSource) *volume.Spec {
	pv := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}}
	pv.Spec.PersistentVolumeSource = source
	pv.Spec.NodeAffinity = &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
		MatchExpressions: []v1.NodeSelectorRequirement{{Key: "a", Operator: v1.NodeSelectorOpExists}},
	}}}}
	return volume.NewSpecFromPersistentVolume(pv, false)
}

// TestEveryFieldOfASourceIsUsedOrRefused: a field that is set is never dropped without a word, one of a newer k8s.io/api neither.
func TestEveryFieldOfASourceIsUsedOrRefused(t *testing.T) {
	items := []string{"items.key", "items.path", "items.mode"}
	keys := slices.Concat(items, []string{"defaultMode", "optional"})
	downward := []string{
		"path", "mode", "fieldRef.apiVersion", "fieldRef.fieldPath", "resourceFieldRef.containerName", "resourceFieldRef.resource", "resourceFieldRef.divisor",
	}
	for name, c := range map[string]sourceFields{
		"hostPath": {plugin: hostpath.New(hostpath.Options{}), spec: func() (*volume.Spec, any) {
			s := &v1.HostPathVolumeSource{Path: "/srv/data"}
			return inPod(v1.VolumeSource{HostPath: s}), s
		}, used: []string{"path", "type"}},
		"emptyDir": {plugin: emptydir.New(emptydir.Options{}), spec: func() (*volume.Spec, any) {
			s := &v1.EmptyDirVolumeSource{}
			return inPod(v1.VolumeSource{EmptyDir: s}), s
		}, used: []string{"medium", "sizeLimit"}},
		"nfs": {plugin: nfs.New(nfs.Options{}), spec: func() (*volume.Spec, any) {
			s := &v1.NFSVolumeSource{Server: "a", Path: "/b"}
			return inPersistentVolume(v1.PersistentVolumeSource{NFS: s}), s
		}, used: []string{"server", "path", "readOnly"}},
		"local": {plugin: local.New(local.Options{}), spec: func() (*volume.Spec, any) {
			s := &v1.LocalVolumeSource{Path: "/srv/data"}
			return inPersistentVolume(v1.PersistentVolumeSource{Local: s}), s
		}, used: []string{"path", "fsType"}},
		"csi": {plugin: loopblock.New(loopblock.Options{}), spec: func() (*volume.Spec, any) {
			s := &v1.CSIPersistentVolumeSource{Driver: loopblock.Driver, VolumeHandle: "disk"}
			return inPersistentVolume(v1.PersistentVolumeSource{CSI: s}), s
		}, used: []string{"driver", "volumeHandle", "readOnly", "fsType"}, refused: []string{
			"volumeAttributes", "controllerPublishSecretRef", "nodeStageSecretRef", "nodePublishSecretRef", "controllerExpandSecretRef", "nodeExpandSecretRef",
		}},
		"configMap": {plugin: files.NewConfigMap(nil, files.Options{}), spec: func() (*volume.Spec, any) {
			s := &v1.ConfigMapVolumeSource{LocalObjectReference: v1.LocalObjectReference{Name: "c"}}
			return inPod(v1.VolumeSource{ConfigMap: s}), s
		}, used: append([]string{"name"}, keys...)},
		"secret": {plugin: files.NewSecret(nil, files.Options{}), spec: func() (*volume.Spec, any) {
			s := &v1.SecretVolumeSource{SecretName: "s"}
			return inPod(v1.VolumeSource{Secret: s}), s
		}, used: append([]string{"secretName"}, keys...)},
		"downwardAPI": {plugin: files.NewDownwardAPI(nil, files.Options{}), spec: func() (*volume.Spec, any) {
			s := &v1.DownwardAPIVolumeSource{}
			return inPod(v1.VolumeSource{DownwardAPI: s}), s
		}, used: append(beneath("items", downward), "defaultMode")},
		// A pod certificate is refused when the volume is set up: see package files.
		"projected": {plugin: files.NewProjected(files.Getters{}, files.Options{}), spec: func() (*volume.Spec, any) {
			s := &v1.ProjectedVolumeSource{}
			return inPod(v1.VolumeSource{Projected: s}), s
		}, used: slices.Concat([]string{"defaultMode"}, beneath("sources", slices.Concat(
			beneath("secret", append(items, "name", "optional")), beneath("configMap", append(items, "name", "optional")),
			beneath("downwardAPI.items", downward), beneath("serviceAccountToken", []string{"audience", "expirationSeconds", "path"}),
			beneath("clusterTrustBundle", []string{"name", "signerName", "labelSelector", "optional", "path"}), []string{"podCertificate"},
		)))},
	} {
		t.Run(name, func(t *testing.T) {
			host, err := volume.NewHost(volume.HostOptions{RootDir: t.TempDir(), NodeName: testNode})
			require.NoError(t, err)
			require.NoError(t, c.plugin.Init(t.Context(), host))
			pod := podOf("web")
			spec, source := c.spec()
			assert.ElementsMatch(t, slices.Concat(c.used, c.refused), fieldsOf(reflect.TypeOf(source).Elem(), ""), "say what becomes of it")
			_, err = c.plugin.NewMounter(spec, pod)
			require.NoError(t, err)
			for _, field := range c.refused {
				spec, source := c.spec()
				setField(t, reflect.ValueOf(source).Elem(), field)
				_, err := c.plugin.NewMounter(spec, pod)
				require.ErrorIs(t, err, volume.ErrInvalid, field)
			}
		})
	}
}

func beneath(parent string, fields []string) []string {
	all := make([]string, 0, len(fields))
	for _, f := range fields {
		all = append(all, parent+"."+f)
	}
	return all
}

// whole are the types that are handed on as they are, or refused.
var whole = []reflect.Type{
	reflect.TypeFor[metav1.LabelSelector](), reflect.TypeFor[v1.PodCertificateProjection](), reflect.TypeFor[v1.SecretReference](),
}

// fieldsOf returns the names of the fields of a struct as a manifest has them, those of structs in it with a dot.
func fieldsOf(of reflect.Type, prefix string) []string {
	var names []string
	for i := range of.NumField() {
		f := of.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		inner := f.Type
		for inner.Kind() == reflect.Pointer || inner.Kind() == reflect.Slice {
			inner = inner.Elem()
		}
		isOurs := inner.Kind() == reflect.Struct && inner.PkgPath() == reflect.TypeFor[v1.Pod]().PkgPath()
		switch {
		case isOurs && !slices.Contains(whole, inner) && name == "":
			names = append(names, fieldsOf(inner, prefix)...)
		case isOurs && !slices.Contains(whole, inner):
			names = append(names, fieldsOf(inner, prefix+name+".")...)
		default:
			names = append(names, prefix+name)
		}
	}
	return names
}

// setField gives a field of a struct a value.
func setField(t *testing.T, of reflect.Value, name string) {
	t.Helper()
	for i := range of.NumField() {
		if tag, _, _ := strings.Cut(of.Type().Field(i).Tag.Get("json"), ","); tag != name {
			continue
		}
		switch f := of.Field(i); f.Kind() {
		case reflect.Pointer:
			f.Set(reflect.New(f.Type().Elem()))
		case reflect.Map:
			f.Set(reflect.ValueOf(map[string]string{"a": "b"}))
		default:
			require.Fail(t, "cannot set "+name)
		}
		return
	}
	require.Fail(t, "there is no field "+name)
}

// TestAVolumeWithTwoSourcesIsRefused: whichever plugin served it would leave the other source out.
func TestAVolumeWithTwoSourcesIsRefused(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		w.start()
		pod := podOf("a", "-own")
		pod.Spec.Volumes[0].EmptyDir = &v1.EmptyDirVolumeSource{}
		require.ErrorIs(t, w.manager.AddPod(t.Context(), pod), volume.ErrInvalid)
	})
}
