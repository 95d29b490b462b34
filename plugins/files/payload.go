package files

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volume/atomicwriter"
)

// tokenMode is the mode of a token that one user or one group is to read.
const tokenMode = 0o600

// payload collects the files of one volume.
type payload struct {
	getters Getters
	pod     *v1.Pod
	args    volume.MounterArgs
	// mode is that of a file which has none of its own.
	mode  int32
	files map[string]atomicwriter.FileProjection
}

// collect gets the content of every source. Errors hold nothing of it.
func (m *mounter) collect(ctx context.Context, args volume.MounterArgs) (map[string]atomicwriter.FileProjection, error) {
	p := &payload{
		getters: m.plugin.getters, pod: m.pod, args: args, mode: v1.ConfigMapVolumeSourceDefaultMode,
		files: map[string]atomicwriter.FileProjection{},
	}
	if m.source.DefaultMode != nil {
		p.mode = *m.source.DefaultMode
	}
	for i, source := range m.source.Sources {
		if err := p.add(ctx, source); err != nil {
			return nil, fmt.Errorf("source %d: %w", i+1, err)
		}
	}
	return p.files, nil
}

func (p *payload) add(ctx context.Context, source v1.VolumeProjection) error {
	if n := countOf(source); n > 1 {
		return fmt.Errorf("it names %d objects: give each a source of its own: %w", n, volume.ErrInvalid)
	}
	switch {
	case source.ConfigMap != nil:
		return p.addConfigMap(ctx, source.ConfigMap)
	case source.Secret != nil:
		return p.addSecret(ctx, source.Secret)
	case source.DownwardAPI != nil:
		return p.addDownwardAPI(ctx, source.DownwardAPI)
	case source.ServiceAccountToken != nil:
		return p.addToken(ctx, source.ServiceAccountToken)
	case source.ClusterTrustBundle != nil:
		return p.addTrustBundle(ctx, source.ClusterTrustBundle)
	case source.PodCertificate != nil:
		return fmt.Errorf("pod certificates are not served: %w", volume.ErrUnsupported)
	}
	return fmt.Errorf("it names nothing that is known: use one of configMap, secret, downwardAPI, serviceAccountToken, clusterTrustBundle: %w",
		volume.ErrInvalid)
}

// countOf returns how many objects a source names.
func countOf(source v1.VolumeProjection) (n int) {
	for _, isSet := range []bool{
		source.ConfigMap != nil, source.Secret != nil, source.DownwardAPI != nil, source.ServiceAccountToken != nil,
		source.ClusterTrustBundle != nil, source.PodCertificate != nil,
	} {
		if isSet {
			n++
		}
	}
	return n
}

// put adds one file; nil as mode is the default.
func (p *payload) put(path string, mode *int32, file atomicwriter.FileProjection) error {
	if _, ok := p.files[path]; ok {
		return fmt.Errorf("path %q is given twice: give each file a path of its own: %w", path, volume.ErrInvalid)
	}
	if file.Mode = p.mode; mode != nil {
		file.Mode = *mode
	}
	p.files[path] = file
	return nil
}

// object is what a source names.
type object struct {
	what       string // for errors
	isOptional bool
}

func objectOf(kind, name string, optional *bool) object {
	return object{what: fmt.Sprintf("%s %q", kind, name), isOptional: optional != nil && *optional}
}

// missed returns the error of a getter, nil where it says that the object does not exist and need not.
func (o object) missed(err error) error {
	if o.isOptional && errors.Is(err, ErrNotFound) {
		return nil
	}
	return fmt.Errorf("%s: %w", o.what, err)
}

func (p *payload) addConfigMap(ctx context.Context, source *v1.ConfigMapProjection) error {
	if p.getters.ConfigMaps == nil {
		return noGetter("config maps")
	}
	from := objectOf("config map", source.Name, source.Optional)
	found, err := p.getters.ConfigMaps.ConfigMap(ctx, p.pod.Namespace, source.Name)
	if err != nil {
		return from.missed(err)
	}
	data := make(map[string][]byte, len(found.Data)+len(found.BinaryData))
	maps.Copy(data, found.BinaryData)
	for key, text := range found.Data {
		data[key] = []byte(text)
	}
	return p.addKeys(from, data, source.Items)
}

func (p *payload) addSecret(ctx context.Context, source *v1.SecretProjection) error {
	if p.getters.Secrets == nil {
		return noGetter("secrets")
	}
	from := objectOf("secret", source.Name, source.Optional)
	found, err := p.getters.Secrets.Secret(ctx, p.pod.Namespace, source.Name)
	if err != nil {
		return from.missed(err)
	}
	return p.addKeys(from, secretData(found), source.Items)
}

// secretData returns what a secret holds. Text that is still in stringData, which an API server folds into data, goes over
// data, as it does there.
func secretData(secret *v1.Secret) map[string][]byte {
	if len(secret.StringData) == 0 {
		return secret.Data
	}
	data := maps.Clone(secret.Data)
	if data == nil {
		data = make(map[string][]byte, len(secret.StringData))
	}
	for key, text := range secret.StringData {
		data[key] = []byte(text)
	}
	return data
}

// addKeys adds the keys that items name, or all when there are no items.
func (p *payload) addKeys(from object, data map[string][]byte, items []v1.KeyToPath) error {
	if len(items) == 0 {
		for _, key := range slices.Sorted(maps.Keys(data)) {
			items = append(items, v1.KeyToPath{Key: key, Path: key})
		}
	}
	for _, item := range items {
		content, ok := data[item.Key]
		if !ok && from.isOptional {
			continue
		}
		if !ok {
			return fmt.Errorf("%s has no key %q: add it, or make the source optional: %w", from.what, item.Key, ErrNotFound)
		}
		if err := p.put(item.Path, item.Mode, atomicwriter.FileProjection{Data: content}); err != nil {
			return fmt.Errorf("%s: %w", from.what, err)
		}
	}
	return nil
}

func (p *payload) addToken(ctx context.Context, source *v1.ServiceAccountTokenProjection) error {
	if p.getters.Tokens == nil {
		return noGetter("tokens of service accounts")
	}
	token, err := p.getters.Tokens.ServiceAccountToken(ctx, p.pod, *source)
	if err != nil {
		return fmt.Errorf("token of service account %q: %w", p.pod.Spec.ServiceAccountName, err)
	}
	file, mode := atomicwriter.FileProjection{Data: []byte(token), FsUser: p.args.FsUser}, p.mode
	if p.args.FsUser != nil || p.args.FsGroup != nil {
		mode = tokenMode
	}
	return p.put(source.Path, &mode, file)
}

func (p *payload) addTrustBundle(ctx context.Context, source *v1.ClusterTrustBundleProjection) error {
	if p.getters.TrustBundles == nil {
		return noGetter("cluster trust bundles")
	}
	from := objectOf("cluster trust bundle for path", source.Path, source.Optional)
	bundle, err := p.getters.TrustBundles.TrustBundle(ctx, *source)
	if err != nil {
		if err = from.missed(err); err != nil {
			return err
		}
		bundle = nil // The file is there all the same, as in Kubernetes.
	}
	return p.put(source.Path, nil, atomicwriter.FileProjection{Data: bundle})
}

func noGetter(what string) error {
	return fmt.Errorf("this program has no %s: give the plugin's constructor where they come from: %w", what, volume.ErrUnsupported)
}
