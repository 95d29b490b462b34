package loopblock

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/volumekit/volumekit/volume"
)

func newClaim(size string) *v1.PersistentVolumeClaim {
	return &v1.PersistentVolumeClaim{Spec: v1.PersistentVolumeClaimSpec{
		AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
		Resources: v1.VolumeResourceRequirements{
			Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse(size)},
		},
	}}
}

func TestRequestSize(t *testing.T) {
	for _, c := range []struct {
		asked, fsType string
		want          int64
	}{
		{"64Mi", "ext4", 64 << 20},
		{"1", "ext4", 8 << 20},
		{"10M", "ext4", 10 << 20},
		{"67108865", "ext4", 65 << 20},
		{"1Mi", "xfs", 300 << 20},
		{"1Mi", "btrfs", 128 << 20},
		{"1Gi", "xfs", 1 << 30},
	} {
		r, err := requestOf(volume.VolumeOptions{
			PVName: "pv", PVC: newClaim(c.asked), Parameters: map[string]string{"fstype": c.fsType},
		})
		require.NoError(t, err)
		assert.Equal(t, c.want, r.size, "%s of %s", c.asked, c.fsType)
	}
}

func TestRequestDefaults(t *testing.T) {
	r, err := requestOf(volume.VolumeOptions{PVName: "pv", PVC: newClaim("64Mi")})
	require.NoError(t, err)
	assert.Equal(t, request{handle: "pv", size: 64 << 20, fsType: "ext4"}, r)
	r, err = requestOf(volume.VolumeOptions{
		PVName: "pv", PVC: newClaim("64Mi"), Parameters: map[string]string{"preallocate": "true"},
	})
	require.NoError(t, err)
	assert.True(t, r.preallocate)
}

func TestNewProvisionerRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*volume.VolumeOptions)
		want   error
	}{
		"unknown parameter":  {func(o *volume.VolumeOptions) { o.Parameters = map[string]string{"type": "ssd"} }, volume.ErrInvalid},
		"unknown filesystem": {func(o *volume.VolumeOptions) { o.Parameters = map[string]string{"fstype": "ntfs"} }, volume.ErrInvalid},
		"odd preallocate":    {func(o *volume.VolumeOptions) { o.Parameters = map[string]string{"preallocate": "maybe"} }, volume.ErrInvalid},
		"no name":            {func(o *volume.VolumeOptions) { o.PVName = "" }, volume.ErrInvalid},
		"name with a slash":  {func(o *volume.VolumeOptions) { o.PVName = "../etc" }, volume.ErrInvalid},
		"name that is long":  {func(o *volume.VolumeOptions) { o.PVName = strings.Repeat("x", 250) }, volume.ErrInvalid},
		"no claim":           {func(o *volume.VolumeOptions) { o.PVC = nil }, volume.ErrInvalid},
		"no size":            {func(o *volume.VolumeOptions) { o.PVC.Spec.Resources.Requests = nil }, volume.ErrInvalid},
		"too large":          {func(o *volume.VolumeOptions) { o.PVC = newClaim("8191Pi"); o.PVC = newClaim("9223372036854775807") }, volume.ErrInfeasible},
		"many writing nodes": {func(o *volume.VolumeOptions) {
			o.PVC.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteMany}
		}, volume.ErrInfeasible},
		"a source of data": {func(o *volume.VolumeOptions) { o.PVC.Spec.DataSource = &v1.TypedLocalObjectReference{} }, volume.ErrInfeasible},
		"a limit too low": {func(o *volume.VolumeOptions) {
			o.PVC.Spec.Resources.Limits = v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Mi")}
		}, volume.ErrInfeasible},
		"an option to remount": {func(o *volume.VolumeOptions) { o.MountOptions = []string{"remount"} }, volume.ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			options := volume.VolumeOptions{PVName: "pv", PVC: newClaim("64Mi")}
			c.change(&options)
			_, err := New(Options{}).NewProvisioner(options)
			require.ErrorIs(t, err, c.want)
		})
	}
}

func TestInitRefusesBaseDir(t *testing.T) {
	host, err := volume.NewHost(volume.HostOptions{RootDir: "/var/lib/node", NodeName: "node-1"})
	require.NoError(t, err)
	for _, dir := range []string{"images", "./images", "/", "/."} {
		require.ErrorIs(t, New(Options{BaseDir: dir}).Init(t.Context(), host), volume.ErrInvalid, dir)
	}
	p := New(Options{})
	require.NoError(t, p.Init(t.Context(), host))
	assert.Equal(t, "/var/lib/node/plugins/volumekit.io/loop-block/images", p.devices.images.dir)
}
