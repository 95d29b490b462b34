package volume_test

import (
	"context"
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/volume"
)

// vault is where this program has its secrets.
type vault map[string]*v1.Secret

func (v vault) Secret(_ context.Context, namespace, name string) (*v1.Secret, error) {
	secret, ok := v[namespace+"/"+name]
	if !ok {
		return nil, errors.New("it is not in the vault")
	}
	return secret, nil
}

// share mounts shares of a server that wants a password. Its constructor is given the getter and the mounter.
type share struct {
	secrets volume.SecretGetter
	mounter mount.Interface
}

// setUp is what the SetUp of its mounter does: spec to secret, secret to mount.
func (s *share) setUp(ctx context.Context, spec *volume.Spec, pod *v1.Pod, path string) error {
	driver, _ := spec.Driver()
	secret, err := driver.Secret(ctx, s.secrets, pod.Namespace)
	if err != nil {
		return fmt.Errorf("volume %q: %w", spec.Name(), err)
	}
	request := mount.Request{
		Source: driver.Parameters["share"], Target: path, FSType: "cifs",
		Options: []string{"nosuid", "nodev"}, UserOptions: volume.MountOptionFromSpec(spec),
		Sensitive: []string{"password=" + string(secret["password"])},
	}
	fmt.Println(request, "for", driver)
	err = s.mounter.Mount(ctx, request)
	return volume.NewSecrets(string(secret["password"])).Redact(err)
}

// A secret goes from the spec, which has its name, by the getter that the plugin was given, into Request.Sensitive.
func ExampleDriver_Secret() {
	mounter := fake.NewMounter(fake.MounterOptions{})
	mounter.Inject(fake.MethodMount, fake.Fail(errors.New("the server refused hunter2-and-more")))
	plugin := &share{mounter: mounter, secrets: vault{"web/login": {Data: map[string][]byte{"password": []byte("hunter2-and-more")}}}}
	pod := &v1.Pod{}
	pod.Namespace = "web"
	spec := volume.NewSpecFromVolume(&v1.Volume{Name: "data", VolumeSource: v1.VolumeSource{CSI: &v1.CSIVolumeSource{
		Driver: "share.example.com", VolumeAttributes: map[string]string{"share": "//server/data"},
		NodePublishSecretRef: &v1.LocalObjectReference{Name: "login"},
	}}})
	ctx := context.Background()
	fmt.Println(plugin.setUp(ctx, spec, pod, "/mnt/data"))
	pod.Namespace = "other"
	fmt.Println(plugin.setUp(ctx, spec, pod, "/mnt/other"))
	// Output:
	// {//server/data /mnt/data cifs [nosuid nodev] 0 1 } for {example.com/share   false [share] login }
	// the server refused ***
	// volume "data": secret "login" of namespace "other": it is not in the vault
}
