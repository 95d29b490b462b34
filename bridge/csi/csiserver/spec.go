package csiserver

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/volume"
)

const (
	// originKey is the key in a volume's context of what a node must know of the volume.
	originKey = "volumekit.io/volume"
	// deviceKey and readOnlyKey are keys in the publish context: what Attach returned, and that it attached for reading alone.
	deviceKey   = "volumekit.io/device"
	readOnlyKey = "volumekit.io/read-only"
)

// Keys that Kubernetes adds to parameters and contexts begin so.
var kubernetesPrefixes = []string{"csi.storage.k8s.io/", "storage.kubernetes.io/"}

const (
	claimNameKey      = "csi.storage.k8s.io/pvc/name"
	claimNamespaceKey = "csi.storage.k8s.io/pvc/namespace"
	podNameKey        = "csi.storage.k8s.io/pod.name"
	podNamespaceKey   = "csi.storage.k8s.io/pod.namespace"
	serviceAccountKey = "csi.storage.k8s.io/serviceAccount.name"
	ephemeralKey      = "csi.storage.k8s.io/ephemeral"
)

// capability is a checked VolumeCapability, as it is on record.
type capability struct {
	Block  bool   `json:",omitempty"`
	FSType string `json:",omitempty"`
	Mode   csi.VolumeCapability_AccessMode_Mode
	Group  *int64 `json:",omitempty"`
	// flags may hold secrets, and are on no record.
	flags []string
}

// capabilityOf checks what a request says.
func capabilityOf(c *csi.VolumeCapability) (capability, error) {
	if c == nil {
		return capability{}, status.Error(codes.InvalidArgument, "the volume capability is missing")
	}
	result := capability{Mode: c.GetAccessMode().GetMode()}
	switch access := c.GetAccessType().(type) {
	case *csi.VolumeCapability_Block:
		result.Block = true
	case *csi.VolumeCapability_Mount:
		result.FSType, result.flags = access.Mount.GetFsType(), access.Mount.GetMountFlags()
		group, err := groupOf(access.Mount.GetVolumeMountGroup())
		if err != nil {
			return capability{}, err
		}
		result.Group = group
	default:
		return capability{}, status.Error(codes.InvalidArgument, "the volume capability has no access type: give mount or block")
	}
	if _, err := result.accessMode(); err != nil {
		return capability{}, err
	}
	return result, volume.CheckMountOptions(result.flags)
}

func groupOf(group string) (*int64, error) {
	if group == "" {
		return nil, nil
	}
	id, err := strconv.ParseUint(group, 10, 32)
	if err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "volume_mount_group %s is not the number of a group", volume.Quote(group))
	}
	signed := int64(id)
	return &signed, nil
}

// accessMode returns Kubernetes' word for the access mode.
func (c capability) accessMode() (v1.PersistentVolumeAccessMode, error) {
	switch c.Mode {
	case csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER:
		return v1.ReadWriteOnce, nil
	case csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER:
		return v1.ReadWriteOncePod, nil
	case csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY, csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY:
		return v1.ReadOnlyMany, nil
	case csi.VolumeCapability_AccessMode_MULTI_NODE_SINGLE_WRITER, csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER:
		return v1.ReadWriteMany, nil
	case csi.VolumeCapability_AccessMode_UNKNOWN:
	}
	return "", status.Errorf(codes.InvalidArgument, "access mode %v is not one of the specification's", c.Mode)
}

// onManyNodes reports whether the volume may be attached to several nodes.
func (c capability) onManyNodes() bool {
	return c.Mode >= csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY && c.Mode <= csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
}

func (c capability) is(other capability) bool {
	same := c.Block == other.Block && c.FSType == other.FSType && c.Mode == other.Mode
	return same && (c.Group == nil) == (other.Group == nil) && (c.Group == nil || *c.Group == *other.Group)
}

func (c capability) volumeMode() v1.PersistentVolumeMode {
	if c.Block {
		return v1.PersistentVolumeBlock
	}
	return v1.PersistentVolumeFilesystem
}

// served returns the plugin's word for the access mode. That one workload writes at a time is seen to by the server, so that a
// plugin need not know ReadWriteOncePod.
func (s *resolved) served(c capability) (mode v1.PersistentVolumeAccessMode, serves bool, err error) {
	mode, err = c.accessMode()
	plugin, ok := s.plugin.(volume.PersistentVolumePlugin)
	if err != nil || !ok || !s.can.Has(volume.CapPersistent) {
		return mode, err == nil, err
	}
	modes := plugin.GetAccessModes()
	if mode == v1.ReadWriteOncePod && !volume.ContainsAccessMode(modes, mode) {
		mode = v1.ReadWriteOnce
	}
	return mode, volume.ContainsAccessMode(modes, mode), nil
}

// unsupported says why the plugin cannot serve a capability; empty when it can.
func (s *resolved) unsupported(c capability) string {
	_, serves, err := s.served(c)
	switch {
	case err != nil:
		return err.Error()
	case c.Block && !s.can.Has(volume.CapBlock):
		return "the plugin serves no block volumes"
	case len(c.flags) > 0 && !s.can.Has(volume.CapMountOptions):
		return "the plugin takes no mount flags"
	case !serves:
		return fmt.Sprintf("the plugin does not serve access mode %v", c.Mode)
	}
	return ""
}

// supported is capabilityOf for a capability that the plugin can serve.
func (s *resolved) supported(c *csi.VolumeCapability) (capability, error) {
	wanted, err := capabilityOf(c)
	if err != nil {
		return capability{}, err
	}
	if why := s.unsupported(wanted); why != "" {
		return capability{}, status.Error(codes.InvalidArgument, why)
	}
	return wanted, nil
}

// origin is what a volume's context says: the source of its PersistentVolume, and whether it is a block volume.
type origin struct {
	Source v1.PersistentVolumeSource `json:"source"`
	Block  *bool                     `json:"block,omitempty"` // nil: unknown
	// ID is the volume's id. It is in contexts only, and empty in those of earlier versions and those written by hand.
	ID string `json:"id,omitempty"`
}

// originOf returns what is known of a volume that was made.
func originOf(pv *v1.PersistentVolume) origin {
	block := pv.Spec.VolumeMode != nil && *pv.Spec.VolumeMode == v1.PersistentVolumeBlock
	return origin{Source: pv.Spec.PersistentVolumeSource, Block: &block}
}

// contextOf returns the context of the volume with that id.
func contextOf(id string, pv *v1.PersistentVolume) (map[string]string, error) {
	o := originOf(pv)
	o.ID = id
	text, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	return map[string]string{originKey: string(text)}, nil
}

// originOfContext reads a volume's context. One without an origin is of a volume that was made by hand. One of another volume is
// refused: its source would be used under this volume's id.
func (s *resolved) originOfContext(id string, context map[string]string) (origin, error) {
	if context[ephemeralKey] == "true" {
		return origin{}, status.Error(codes.InvalidArgument, "inline ephemeral volumes are not served: use a claim")
	}
	text, ok := context[originKey]
	if !ok {
		return origin{Source: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{
			Driver: s.name, VolumeHandle: id, VolumeAttributes: withoutKubernetes(context),
		}}}, nil
	}
	var o origin
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return origin{}, status.Errorf(codes.InvalidArgument, "%s in the volume's context cannot be read: %v", originKey, err)
	}
	if o.ID != "" && o.ID != id {
		return origin{}, status.Errorf(codes.InvalidArgument, "the context is that of volume %s, and not of %s: give the context that CreateVolume has returned",
			volume.Quote(o.ID), volume.Quote(id))
	}
	o.ID = ""
	return o, nil
}

// withoutKubernetes leaves out what Kubernetes has added. Nil when nothing is left.
func withoutKubernetes(values map[string]string) map[string]string {
	kept := maps.Clone(values)
	maps.DeleteFunc(kept, func(key, _ string) bool {
		return slices.ContainsFunc(kubernetesPrefixes, func(prefix string) bool { return strings.HasPrefix(key, prefix) })
	})
	if len(kept) == 0 {
		return nil
	}
	return kept
}

// use is how a volume is to be used.
type use struct {
	capability capability
	// readOnly says that no pod writes to it, podReadOnly that this pod does not.
	readOnly, podReadOnly bool
}

// specOf returns the volume as the plugin sees it: with what the request says about its use.
func (s *resolved) specOf(id string, o origin, u use) (*volume.Spec, error) {
	if o.Block != nil && *o.Block != u.capability.Block {
		return nil, status.Errorf(codes.InvalidArgument, "volume %s was made with volumeMode Block=%t: use it so", volume.Quote(id), *o.Block)
	}
	mode, _, err := s.served(u.capability)
	if err != nil {
		return nil, err
	}
	volumeMode := u.capability.volumeMode()
	pv := &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: element(id)},
		Spec: v1.PersistentVolumeSpec{
			PersistentVolumeSource: *o.Source.DeepCopy(), AccessModes: []v1.PersistentVolumeAccessMode{mode},
			VolumeMode: &volumeMode, MountOptions: u.capability.flags,
		},
	}
	if source := pv.Spec.CSI; source != nil {
		source.FSType = cmp.Or(u.capability.FSType, source.FSType)
		source.ReadOnly = source.ReadOnly || u.readOnly
	}
	spec := volume.NewSpecFromPersistentVolume(pv, u.readOnly || u.podReadOnly)
	if _, err := s.plugins.FindPluginBySpec(spec); err != nil {
		return nil, fmt.Errorf("volume %s: %w: %w", volume.Quote(id), volume.ErrInvalid, err)
	}
	return spec, nil
}

// recorded returns the volume of spec as it is on record. A volume's context is no secret by the specification; its mount flags
// are.
func (s *resolved) recorded(spec *volume.Spec) *v1.PersistentVolume {
	pv := spec.Recorded(s.public).PersistentVolume
	pv.Spec.PersistentVolumeSource = *spec.PersistentVolume.Spec.PersistentVolumeSource.DeepCopy()
	return pv
}

const digestPrefix = "csi-"

// element returns what stands for a name or an id in paths: itself, where it can, else a digest.
func element(name string) string {
	plain := len(name) <= 128 && name[0] != '.' && name[0] != '-' && !strings.HasPrefix(name, digestPrefix)
	if plain && !strings.ContainsFunc(name, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-' && r != '.' && r != '_'
	}) {
		return name
	}
	return digestPrefix + digest(name)
}

// digest is 160 bits of a SHA-256.
func digest(parts ...string) string {
	h := sha256.New()
	for _, part := range parts {
		_, _ = fmt.Fprintf(h, "%d:%s", len(part), part) // a hash takes everything
	}
	return hex.EncodeToString(h.Sum(nil)[:20])
}

// podOf stands for the pod at a target path, with what the volume's context tells of it.
func podOf(uid types.UID, context map[string]string) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{UID: uid, Name: cmp.Or(context[podNameKey], string(uid)), Namespace: context[podNamespaceKey]},
		Spec:       v1.PodSpec{ServiceAccountName: context[serviceAccountKey]},
	}
}

// uidOf is the UID of the pod that a target path stands for.
func uidOf(id, target string) types.UID { return types.UID(digestPrefix + digest(id, target)) }
