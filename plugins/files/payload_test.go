package files

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volume/atomicwriter"
)

func collect(t *testing.T, plugin *Plugin, spec *volume.Spec, args volume.MounterArgs) (map[string]atomicwriter.FileProjection, error) {
	t.Helper()
	created, err := plugin.NewMounter(spec, newPod())
	require.NoError(t, err)
	return created.(*mounter).collect(t.Context(), args)
}

func TestKeysAreFiles(t *testing.T) {
	plugin := start(t, NewConfigMap(newObjects(), Options{}))
	all := configMap("config")
	chosen := configMap("config", v1.KeyToPath{Key: "app.conf", Path: "etc/app", Mode: ptr[int32](0o400)}, v1.KeyToPath{Key: "blob", Path: "b"})
	chosen.DefaultMode = ptr[int32](0o440)
	optional := configMap("config", v1.KeyToPath{Key: "none", Path: "n"}, v1.KeyToPath{Key: "other", Path: "o"})
	optional.Optional = ptr(true)
	missing := configMap("missing")
	missing.Optional = ptr(true)
	type files = map[string]atomicwriter.FileProjection
	for what, c := range map[string]struct {
		source *v1.ConfigMapVolumeSource
		want   files
	}{
		"all keys": {all, files{
			"app.conf": {Data: []byte("a=1\n"), Mode: 0o644}, "other": {Data: []byte("x"), Mode: 0o644}, "blob": {Data: []byte{0, 255}, Mode: 0o644},
		}},
		"items":                     {chosen, files{"etc/app": {Data: []byte("a=1\n"), Mode: 0o400}, "b": {Data: []byte{0, 255}, Mode: 0o440}}},
		"missing key, optional":     {optional, files{"o": {Data: []byte("x"), Mode: 0o644}}},
		"missing map, optional":     {missing, files{}},
		"missing map, not optional": {configMap("missing"), nil},
		"missing key, not optional": {configMap("config", v1.KeyToPath{Key: "none", Path: "n"}), nil},
	} {
		got, err := collect(t, plugin, inVolume(v1.VolumeSource{ConfigMap: c.source}), volume.MounterArgs{})
		if c.want == nil {
			require.ErrorIs(t, err, ErrNotFound, what)
			continue
		}
		require.NoError(t, err, what)
		assert.Equal(t, c.want, got, what)
	}
}

func TestWhatCannotBeReadIsNotAbsent(t *testing.T) {
	o := newObjects()
	o.down = errors.New("the server is down")
	missing := configMap("missing")
	missing.Optional = ptr(true)
	_, err := collect(t, start(t, NewConfigMap(o, Options{})), inVolume(v1.VolumeSource{ConfigMap: missing}), volume.MounterArgs{})
	require.ErrorIs(t, err, o.down)
}

func TestSourcesOfAProjectedVolume(t *testing.T) {
	plugin := start(t, NewProjected(allOf(newObjects()), Options{}))
	reference := v1.LocalObjectReference{Name: "login"}
	spec := projected(
		v1.VolumeProjection{Secret: &v1.SecretProjection{LocalObjectReference: reference, Items: []v1.KeyToPath{{Key: "password", Path: "p"}}}},
		v1.VolumeProjection{ConfigMap: &v1.ConfigMapProjection{
			LocalObjectReference: v1.LocalObjectReference{Name: "config"}, Items: []v1.KeyToPath{{Key: "other", Path: "o"}},
		}},
		v1.VolumeProjection{DownwardAPI: &v1.DownwardAPIProjection{Items: []v1.DownwardAPIVolumeFile{
			{Path: "name", FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.name"}, Mode: ptr[int32](0o444)},
		}}},
		v1.VolumeProjection{ServiceAccountToken: &v1.ServiceAccountTokenProjection{Path: "token", Audience: "vault"}},
		v1.VolumeProjection{ClusterTrustBundle: &v1.ClusterTrustBundleProjection{Path: "ca", Name: ptr("here")}},
		v1.VolumeProjection{ClusterTrustBundle: &v1.ClusterTrustBundleProjection{Path: "none", Name: ptr("missing"), Optional: ptr(true)}},
	)
	got, err := collect(t, plugin, spec, volume.MounterArgs{})
	require.NoError(t, err)
	want := map[string]atomicwriter.FileProjection{
		"p":     {Data: []byte(secretText), Mode: 0o644},
		"o":     {Data: []byte("x"), Mode: 0o644},
		"name":  {Data: []byte("web"), Mode: 0o444},
		"token": {Data: []byte(secretText + " of robot for vault"), Mode: 0o644},
		"ca":    {Data: []byte("-----BEGIN CERTIFICATE-----"), Mode: 0o644},
		"none":  {Mode: 0o644},
	}
	assert.Equal(t, want, got)

	user, group := int64(1000), int64(2000)
	for _, args := range []volume.MounterArgs{{FsUser: &user}, {FsGroup: &group}} {
		got, err = collect(t, plugin, spec, args)
		require.NoError(t, err)
		assert.Equal(t, int32(0o600), got["token"].Mode, "the user or the group can read it all the same")
		assert.Equal(t, args.FsUser, got["token"].FsUser)
		assert.Equal(t, want["p"], got["p"])
	}
}

func TestBadSourcesAreRefused(t *testing.T) {
	plugin := start(t, NewProjected(allOf(newObjects()), Options{}))
	config := v1.VolumeProjection{ConfigMap: &v1.ConfigMapProjection{LocalObjectReference: v1.LocalObjectReference{Name: "config"}}}
	downward := func(item v1.DownwardAPIVolumeFile) v1.VolumeProjection {
		return v1.VolumeProjection{DownwardAPI: &v1.DownwardAPIProjection{Items: []v1.DownwardAPIVolumeFile{item}}}
	}
	for what, c := range map[string]struct {
		sources []v1.VolumeProjection
		err     error
	}{
		"the same path twice": {[]v1.VolumeProjection{config, config}, volume.ErrInvalid},
		"no source":           {[]v1.VolumeProjection{{}}, volume.ErrInvalid},
		"pod certificate":     {[]v1.VolumeProjection{{PodCertificate: &v1.PodCertificateProjection{}}}, volume.ErrUnsupported},
		"bundle is missing": {[]v1.VolumeProjection{{ClusterTrustBundle: &v1.ClusterTrustBundleProjection{
			Path: "ca", Name: ptr("missing"),
		}}}, ErrNotFound},
		"no field":          {[]v1.VolumeProjection{downward(v1.DownwardAPIVolumeFile{Path: "f"})}, volume.ErrInvalid},
		"field of no file":  {[]v1.VolumeProjection{downward(v1.DownwardAPIVolumeFile{Path: "f", FieldRef: &v1.ObjectFieldSelector{FieldPath: "spec.nodeName"}})}, volume.ErrInvalid},
		"key without a end": {[]v1.VolumeProjection{downward(v1.DownwardAPIVolumeFile{Path: "f", FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.labels['a"}})}, volume.ErrInvalid},
	} {
		_, err := collect(t, plugin, projected(c.sources...), volume.MounterArgs{})
		require.ErrorIs(t, err, c.err, what)
	}
	without := start(t, NewProjected(Getters{}, Options{}))
	for _, source := range []v1.VolumeProjection{
		config, {Secret: &v1.SecretProjection{}}, {ServiceAccountToken: &v1.ServiceAccountTokenProjection{}}, {ClusterTrustBundle: &v1.ClusterTrustBundleProjection{}},
	} {
		_, err := collect(t, without, projected(source), volume.MounterArgs{})
		require.ErrorIs(t, err, volume.ErrUnsupported)
	}
}

func TestFieldsOfThePod(t *testing.T) {
	for path, want := range map[string]string{
		"metadata.name": "web", "metadata.namespace": "default", "metadata.uid": "pod-1",
		"metadata.labels":                          "a=\"\\\"quoted\\\"\\n\"\napp=\"web\"",
		"metadata.annotations":                     `example.com/note="hello"`,
		"metadata.labels['app']":                   "web",
		"metadata.annotations['example.com/note']": "hello",
		"metadata.labels['none']":                  "",
	} {
		got, err := fieldOf(newPod(), path)
		require.NoError(t, err, path)
		assert.Equal(t, want, got, path)
	}
}

// A mistake in a subscript would else be a file that is empty for ever.
func TestASubscriptThatCanBeNoKeyIsRefused(t *testing.T) {
	plugin := start(t, NewDownwardAPI(nil, Options{}))
	for _, path := range []string{
		"metadata.annotations['']", "metadata.labels['']", "metadata.labels['a b']", "metadata.labels['a/b/c']",
		"metadata.annotations['-a']", "metadata.annotations['a']['b']", "metadata.labels['UPPER.example.com/a']",
	} {
		items := []v1.DownwardAPIVolumeFile{{Path: "f", FieldRef: &v1.ObjectFieldSelector{FieldPath: path}}}
		spec := inVolume(v1.VolumeSource{DownwardAPI: &v1.DownwardAPIVolumeSource{Items: items}})
		_, err := collect(t, plugin, spec, volume.MounterArgs{})
		require.ErrorIs(t, err, volume.ErrInvalid, path)
		assert.ErrorContains(t, err, "can be no key", path)
	}
	for _, path := range []string{"metadata.annotations['UPPER.example.com/Note']", "metadata.labels['None']"} {
		got, err := fieldOf(newPod(), path)
		require.NoError(t, err, path)
		assert.Empty(t, got, path)
	}
}

func TestResourcesOfAContainer(t *testing.T) {
	for _, c := range []struct{ container, resource, divisor, want string }{
		{"c", "limits.memory", "0", "104857600"},
		{"c", "limits.memory", "1Mi", "100"},
		{"c", "limits.memory", "30Mi", "4"},
		{"c", "requests.cpu", "0", "2"},
		{"c", "requests.cpu", "1", "2"},
		{"c", "requests.cpu", "1m", "1250"},
		{"c", "limits.cpu", "1m", "4000"},
		{"init", "limits.memory", "1Mi", "1024"},
		{"c", "requests.ephemeral-storage", "1", "0"},
		{"c", "limits.hugepages-2Mi", "1Mi", "0"},
		{"none", "limits.cpu", "1", ""},
		{"c", "limits.disk", "1", ""},
		{"c", "cpu", "1", ""},
		{"c", "limits.memory", "-1", ""},
	} {
		p := &payload{getters: allOf(newObjects()), pod: newPod()}
		got, err := p.resource(t.Context(), &v1.ResourceFieldSelector{
			ContainerName: c.container, Resource: c.resource, Divisor: resource.MustParse(c.divisor),
		})
		if c.want == "" {
			require.ErrorIs(t, err, volume.ErrInvalid, c)
			continue
		}
		require.NoError(t, err, c)
		assert.Equal(t, c.want, got, c)
	}
	p := &payload{pod: newPod()}
	_, err := p.resource(t.Context(), &v1.ResourceFieldSelector{ContainerName: "c", Resource: "limits.cpu"})
	require.ErrorIs(t, err, volume.ErrUnsupported)
}

// TestTextOfASecretIsInItsFiles: stringData is folded into data, and wins, as an API server does it.
func TestTextOfASecretIsInItsFiles(t *testing.T) {
	o := newObjects()
	o.secrets["default/text"] = &v1.Secret{
		StringData: map[string]string{"a": "new", "b": "text"}, Data: map[string][]byte{"a": []byte("old"), "c": []byte("data")},
	}
	o.secrets["default/only"] = &v1.Secret{StringData: map[string]string{"a": "text"}}
	plugin := start(t, NewSecret(o, Options{}))
	for name, want := range map[string]map[string]string{
		"text": {"a": "new", "b": "text", "c": "data"},
		"only": {"a": "text"},
	} {
		got, err := collect(t, plugin, inVolume(v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: name}}), volume.MounterArgs{})
		require.NoError(t, err)
		files := map[string]string{}
		for path, file := range got {
			files[path] = string(file.Data)
		}
		assert.Equal(t, want, files)
	}
	assert.Equal(t, "old", string(o.secrets["default/text"].Data["a"]), "what a getter returned is not changed")
}

// TestASourceThatNamesTwoThingsIsRefused: one of them would be left out.
func TestASourceThatNamesTwoThingsIsRefused(t *testing.T) {
	plugin := start(t, NewProjected(allOf(newObjects()), Options{}))
	reference := v1.LocalObjectReference{Name: "login"}
	field := v1.ObjectFieldSelector{FieldPath: "metadata.name"}
	for what, spec := range map[string]*volume.Spec{
		"two objects": projected(v1.VolumeProjection{
			Secret: &v1.SecretProjection{LocalObjectReference: reference}, DownwardAPI: &v1.DownwardAPIProjection{},
		}),
		"two fields": projected(v1.VolumeProjection{DownwardAPI: &v1.DownwardAPIProjection{Items: []v1.DownwardAPIVolumeFile{
			{Path: "a", FieldRef: &field, ResourceFieldRef: &v1.ResourceFieldSelector{ContainerName: "c", Resource: "limits.memory"}},
		}}}),
	} {
		_, err := collect(t, plugin, spec, volume.MounterArgs{})
		require.ErrorIs(t, err, volume.ErrInvalid, what)
	}
	field.APIVersion = "v2"
	_, err := collect(t, plugin, projected(v1.VolumeProjection{DownwardAPI: &v1.DownwardAPIProjection{Items: []v1.DownwardAPIVolumeFile{
		{Path: "a", FieldRef: &field},
	}}}), volume.MounterArgs{})
	require.ErrorIs(t, err, volume.ErrUnsupported)
}
