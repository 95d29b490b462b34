package csispec_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/assert"
	"google.golang.org/protobuf/proto"

	"github.com/volumekit/volumekit/bridge/csi/internal/csispec"
	"github.com/volumekit/volumekit/volume"
)

func TestNamesOfDrivers(t *testing.T) {
	for _, name := range []string{"a", "hostpath.csi.k8s.io", "A-b.c9", strings.Repeat("a", 63)} {
		assert.NoError(t, csispec.CheckDriverName(name), name)
	}
	for _, name := range []string{"", "-a", "a.", "a/b", "a b", "a..b", "ä.example.com", "a\n", strings.Repeat("a", 64)} {
		assert.ErrorIs(t, csispec.CheckDriverName(name), volume.ErrInvalid, "%q", name)
	}
}

func TestIDs(t *testing.T) {
	for _, id := range []string{"pvc-1", "a/b c", "größe", "a\tb", strings.Repeat("a", 128)} {
		assert.NoError(t, csispec.CheckName(id), id)
	}
	for _, id := range []string{"", "a\x00", "a\u0085", "\xff", strings.Repeat("a", 129)} {
		assert.ErrorIs(t, csispec.CheckName(id), volume.ErrInvalid, "%q", id)
	}
}

func TestFieldsThatAreTooLarge(t *testing.T) {
	long := strings.Repeat("a", 129)
	cases := map[string]struct {
		message proto.Message
		refused bool
	}{
		"id":           {&csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: long}}, true},
		"node id":      {&csi.NodeGetInfoResponse{NodeId: long}, false},
		"long node id": {&csi.NodeGetInfoResponse{NodeId: long + long}, true},
		"path":         {&csi.NodePublishVolumeRequest{TargetPath: "/" + strings.Repeat("a", 4000)}, false},
		"health path":  {&csi.NodeGetVolumeHealthRequest{VolumePublishPath: "/" + strings.Repeat("a", 4000)}, false},
		"map":          {&csi.ControllerPublishVolumeResponse{PublishContext: map[string]string{"a": strings.Repeat("a", 4095)}}, false},
		"large map":    {&csi.ControllerPublishVolumeResponse{PublishContext: map[string]string{"ab": strings.Repeat("a", 4095)}}, true},
		"in a list": {&csi.ListVolumesResponse{Entries: []*csi.ListVolumesResponse_Entry{
			{Volume: &csi.Volume{VolumeId: "a"}},
			{Volume: &csi.Volume{VolumeId: long}},
		}}, true},
		"mount flags": {&csi.VolumeCapability{AccessType: &csi.VolumeCapability_Mount{
			Mount: &csi.VolumeCapability_MountVolume{MountFlags: []string{strings.Repeat("a", 4000), strings.Repeat("a", 97)}},
		}}, true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			err := csispec.CheckSizes(c.message)
			assert.Equal(t, c.refused, errors.Is(err, volume.ErrInvalid), "%v", err)
		})
	}
}

func TestSecretsAreFoundByTheirOption(t *testing.T) {
	request := &csi.NodeStageVolumeRequest{
		VolumeId:      "vol-1",
		Secrets:       map[string]string{"key": "hunter2-hunter2"},
		VolumeContext: map[string]string{"share": "public"},
	}
	text := csispec.Stripped{Message: request}.String()
	assert.NotContains(t, text, "hunter2")
	assert.Contains(t, text, "vol-1")
	assert.Contains(t, text, "public")
	assert.Equal(t, "hunter2-hunter2", request.GetSecrets()["key"], "the message itself is as it was")

	err := csispec.Secrets(request).Redact(errors.New("mount -o pass=hunter2-hunter2 public: failed"))
	assert.EqualError(t, err, "mount -o pass="+volume.Redacted+" public: failed")
}
