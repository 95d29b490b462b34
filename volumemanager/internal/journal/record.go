package journal

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
	"path/filepath"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/internal/record"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/containers"
)

// Version is the version of a record's payload. A record of a later version is not read. A record of version 2 may lack
// [Settled], and no pod has a record of its own. Version 1 also has other unique names for volumes that belong to one pod:
// package recovery renames those.
const Version = 3

// ourVersion is how a record of Version begins.
const ourVersion = `{"version":3,`

// Record holds what may be left of one volume: an attachment, a staging, and set-ups for pods. A change of its fields, or of
// the fields in its parts, needs another version.
type Record struct {
	// Version is the version of the payload. BootID is the boot in which the record was written.
	Version int    `json:"version"`
	BootID  string `json:"bootID"`
	// Volume is the unique name of the volume; Plugin is the name of its plugin.
	Volume v1.UniqueVolumeName `json:"volume"`
	Plugin string              `json:"plugin"`
	// Spec is a specRecord.
	Spec json.RawMessage `json:"spec,omitempty"`
	// Attachment and Staging are nil if no such operation has begun.
	Attachment *Attachment `json:"attachment,omitempty"`
	Staging    *Staging    `json:"staging,omitempty"`
	// Pods holds set-ups, which are replaced, never changed in place.
	Pods map[types.UID]*SetUp `json:"pods,omitempty"`

	// encoded is the spec from which Spec was made; nil if Spec was read. inner is its inner name.
	encoded *volume.Spec
	inner   string
}

// Attachment is an attachment that exists or is about to be made.
type Attachment struct {
	// Node is the node to which the volume is attached.
	Node types.NodeName `json:"node"`
	// DevicePath is empty while it is not known.
	DevicePath string `json:"devicePath,omitempty"`
}

// Staging is a staging that exists or is about to be made.
type Staging struct {
	// Path is where the volume is staged. DevicePath is its device, if it has one.
	Path       string `json:"path"`
	DevicePath string `json:"devicePath,omitempty"`
	// SELinux is the context with which the volume is mounted; empty means none.
	SELinux string `json:"seLinuxContext,omitempty"`
	// Mount identifies the mount at Path.
	Mount Mount `json:"mount,omitzero"`
}

// SetUp is a set-up for one pod that exists or is about to be made.
type SetUp struct {
	// Namespace and Name are the pod's. They are empty for a volume that was rebuilt.
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// OuterNames are the names of the volume in the pod's spec.
	OuterNames []string `json:"outerNames"`
	// Path is where the volume is set up. SELinux is the context with which it is mounted.
	Path    string `json:"path"`
	SELinux string `json:"seLinuxContext,omitempty"`
	// Mount identifies the mount at Path.
	Mount Mount `json:"mount,omitzero"`
	// Settled is how the volume was set up, if the next start may use it as it is. Nil: it is set up again.
	Settled *Settled `json:"settled,omitempty"`
}

// specRecord is a volume.Spec without secrets.
type specRecord struct {
	Volume           *v1.Volume           `json:"volume,omitempty"`
	PersistentVolume *v1.PersistentVolume `json:"persistentVolume,omitempty"`
	ReadOnly         bool                 `json:"readOnly,omitempty"`
}

// clone returns a copy whose parts can be replaced without changing r.
func (r Record) clone() Record {
	r.Pods = maps.Clone(r.Pods)
	return r
}

// isEmpty reports whether no trace of the volume is left.
func (r Record) isEmpty() bool {
	return r.Attachment == nil && r.Staging == nil && len(r.Pods) == 0
}

// innerName returns the volume's inner name, which the paths of its pod contain.
func (r Record) innerName(uid types.UID, p *SetUp) string {
	if inner, ok := strings.CutPrefix(string(r.Volume), r.Plugin+"/pods/"+string(uid)+"/"); ok {
		return inner
	}
	return filepath.Base(p.Path)
}

// paths returns the paths at which the volume is, or may be, and the paths of its parts (see [containers.PartsOf]).
func (r Record) paths() iter.Seq[string] {
	return func(yield func(string) bool) {
		if r.Staging != nil && !yield(r.Staging.Path) {
			return
		}
		for uid, p := range r.Pods {
			inner := r.innerName(uid, p)
			if !yield(p.Path) || !yield(containers.PartsOf(uid, containers.SubpathName(r.Plugin, inner))) || !yield(containers.PartsOf(uid, inner)) {
				return
			}
		}
	}
}

// mounts returns the part of r that does not outlive a boot; attachments returns the part that does.
func (r Record) mounts() Record {
	r.Attachment = nil
	return r
}

func (r Record) attachments() Record {
	r.Staging, r.Pods = nil, nil
	return r
}

// decodeRecord undoes json.Marshal, and checks everything for which the record will be trusted. key is the record's key on
// disk.
func decodeRecord(key string, payload []byte, host volume.VolumeHost) (Found, error) {
	if newer := isNewer(payload); newer != nil {
		return Found{}, newer
	}
	var r Record
	if err := decodeAll(payload, &r); err != nil {
		return Found{}, fmt.Errorf("record is no volume: %w", err)
	}
	own := r.ownPod(key)
	if own != "" {
		key = string(r.Volume)
	}
	spec, err := r.check(key, host)
	if err == nil {
		r.inner = spec.Name()
	}
	return Found{Record: r, Spec: spec, own: own}, err
}

// Found is a volume that was found on record.
type Found struct {
	// Record is the record; Spec is its decoded spec.
	Record Record
	Spec   *volume.Spec
	// Unproven says that the plugin has not yet confirmed that the record agrees with what it computes.
	Unproven bool
	// own is the pod if this is a pod's own record.
	own types.UID
	// specs holds the specs of pods that have the volume under another inner name.
	specs map[types.UID]*volume.Spec
}

// SpecOf returns the spec by which a pod of the record has the volume.
func (v Found) SpecOf(uid types.UID) *volume.Spec {
	if spec := v.specs[uid]; spec != nil {
		return spec
	}
	return v.Spec
}

// decodeAll decodes one value. It refuses unknown fields, and anything after the value.
func decodeAll(payload []byte, into any) error {
	decoder := json.NewDecoder(bytes.NewReader(payload))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		return err
	}
	if rest := bytes.TrimSpace(payload[decoder.InputOffset():]); len(rest) > 0 {
		return fmt.Errorf("%d bytes follow it: %w", len(rest), volume.ErrInvalid)
	}
	return nil
}

// isNewer returns an error that matches [record.ErrNewer] if a newer manager has written the record. Such a record may hold
// anything.
func isNewer(payload []byte) error {
	if bytes.HasPrefix(payload, []byte(ourVersion)) {
		return nil // as nearly all
	}
	var says struct {
		Version int `json:"version"`
	}
	_ = json.Unmarshal(payload, &says) // An unreadable record does not count as newer.
	if says.Version <= Version {
		return nil
	}
	return fmt.Errorf("record has version %d, this manager reads %d: %w: %w", says.Version, Version, record.ErrNewer, volume.ErrUnsupported)
}

// check refuses a record that no manager would have written: a record must not lead a teardown to a foreign path.
func (r Record) check(key string, host volume.VolumeHost) (*volume.Spec, error) {
	if r.Version < 1 || r.Version > Version {
		return nil, fmt.Errorf("record has version %d, this manager reads %d: %w", r.Version, Version, volume.ErrUnsupported)
	}
	plugin, _, err := volume.SplitUniqueName(r.Volume)
	switch {
	case err != nil:
		return nil, err
	case string(r.Volume) != key || r.Plugin != plugin:
		return nil, fmt.Errorf("record of volume %q names volume %q of plugin %q: %w", key, r.Volume, r.Plugin, volume.ErrInvalid)
	}
	if err := volume.ValidatePluginName(plugin); err != nil {
		return nil, err
	}
	spec, err := r.spec()
	if err != nil {
		return nil, err
	}
	if err := errors.Join(volume.CheckPathElement(spec.Name()), r.checkPaths(host)); err != nil {
		return nil, err
	}
	for uid, p := range r.Pods {
		if err := p.check(uid, spec, host); err != nil {
			return nil, err
		}
	}
	return spec, nil
}

func (r Record) checkPaths(host volume.VolumeHost) error {
	if r.Attachment != nil {
		if err := checkDevice(r.Attachment.DevicePath); err != nil {
			return err
		}
		if r.Attachment.Node != host.GetNodeName() {
			return fmt.Errorf("record is of node %q, this is %q: %w", r.Attachment.Node, host.GetNodeName(), volume.ErrInvalid)
		}
	}
	if r.Staging != nil {
		if err := checkDevice(r.Staging.DevicePath); err != nil {
			return err
		}
		return checkBeneath(r.Staging.Path, host.GetPluginDir(r.Plugin))
	}
	return nil
}

// check refuses a set-up at a path outside the pod's directory. The exception is a hostPath volume, which is used at its own
// path.
func (s *SetUp) check(uid types.UID, spec *volume.Spec, host volume.VolumeHost) error {
	if s == nil {
		return fmt.Errorf("record says nothing of the set-up for pod %q: %w", uid, volume.ErrInvalid)
	}
	if err := volume.CheckPathElement(string(uid)); err != nil {
		return err
	}
	for _, name := range s.OuterNames {
		if err := volume.CheckPathElement(name); err != nil {
			return err
		}
	}
	if s.Namespace != "" || s.Name != "" { // A rebuilt volume lacks them.
		if err := errors.Join(volume.CheckPathElement(s.Namespace), volume.CheckPathElement(s.Name)); err != nil {
			return err
		}
	}
	if UsedWhereItIs(spec, s.Path) {
		return nil
	}
	return checkBeneath(s.Path, filepath.Join(host.GetPodsDir(), string(uid)))
}

// UsedWhereItIs reports whether path is the node's directory that a hostPath volume names. Several volumes may name the same
// one.
func UsedWhereItIs(spec *volume.Spec, path string) bool {
	used := hostPathOf(spec)
	return used != "" && path == filepath.Clean(used)
}

// hostPathOf returns the node's directory that a hostPath volume names; empty for any other volume.
func hostPathOf(spec *volume.Spec) string {
	switch {
	case spec.Volume != nil && spec.Volume.HostPath != nil:
		return spec.Volume.HostPath.Path
	case spec.PersistentVolume != nil && spec.PersistentVolume.Spec.HostPath != nil:
		return spec.PersistentVolume.Spec.HostPath.Path
	}
	return ""
}

func checkDevice(path string) error {
	if path == "" || filepath.IsAbs(path) && filepath.Clean(path) == path {
		return nil
	}
	return fmt.Errorf("device path %q is not absolute and clean: %w", path, volume.ErrInvalid)
}

func checkBeneath(path, dir string) error {
	if filepath.Clean(path) == path && strings.HasPrefix(path, filepath.Clean(dir)+"/") {
		return nil
	}
	return fmt.Errorf("path %q is not beneath %q: %w", path, dir, volume.ErrInvalid)
}

// spec returns the spec of the record, which holds no secrets.
func (r Record) spec() (*volume.Spec, error) {
	var s specRecord
	if len(r.Spec) == 0 {
		return nil, fmt.Errorf("spec of volume %q is missing: %w", r.Volume, volume.ErrInvalid)
	}
	if err := json.Unmarshal(r.Spec, &s); err != nil {
		return nil, fmt.Errorf("spec of volume %q: %w", r.Volume, err)
	}
	if (s.Volume == nil) == (s.PersistentVolume == nil) {
		return nil, fmt.Errorf("spec of volume %q: exactly one of volume and persistentVolume must be there: %w",
			r.Volume, volume.ErrInvalid)
	}
	return &volume.Spec{Volume: s.Volume, PersistentVolume: s.PersistentVolume, ReadOnly: s.ReadOnly}, nil
}

// encodeSpec returns spec as it is recorded; see [volume.Spec.Recorded].
func encodeSpec(spec *volume.Spec, public []string) (json.RawMessage, error) {
	r := spec.Recorded(public)
	return json.Marshal(specRecord{Volume: r.Volume, PersistentVolume: r.PersistentVolume, ReadOnly: r.ReadOnly})
}

// part is the part of a record that an intent is about.
type part uint8

const (
	partAttachment part = iota
	partStaging
	partSetUp
	partAll // all of them
)

// partOf returns the part that intent is about. An operation that stages and sets up records one intent for each.
func partOf(intent operationexecutor.Intent) part {
	switch {
	case intent.Kind == operationexecutor.OpAttach || intent.Kind == operationexecutor.OpDetach:
		return partAttachment
	case intent.PodUID != "" && intent.MountPath != "":
		return partSetUp
	default:
		return partStaging
	}
}

// add enters the part that an intent is about, and reports whether that changed the record.
func (r *Record) add(intent operationexecutor.Intent) bool {
	switch partOf(intent) {
	case partAll:
		return false
	case partAttachment:
		want := Attachment{Node: intent.NodeName, DevicePath: intent.DevicePath}
		if r.Attachment != nil && (*r.Attachment == want || intent.DevicePath == "") {
			return false
		}
		r.Attachment = &want
	case partStaging:
		return r.addStaging(intent)
	case partSetUp:
		return r.addSetUp(intent)
	}
	return true
}

func (r *Record) addStaging(intent operationexecutor.Intent) bool {
	want := Staging{Path: intent.DeviceMountPath, DevicePath: intent.DevicePath, SELinux: intent.SELinuxMountContext}
	if r.Staging == nil {
		r.Staging = &want
		return true
	}
	if want.SELinux == "" {
		want.SELinux = r.Staging.SELinux
	}
	want.Mount = r.Staging.Mount
	if *r.Staging == want || undoes(intent.Kind) {
		return false
	}
	r.Staging = &want
	return true
}

func (r *Record) addSetUp(intent operationexecutor.Intent) bool {
	next := &SetUp{
		Namespace: intent.Pod.Namespace, Name: intent.Pod.Name,
		OuterNames: intent.OuterVolumeSpecNames, Path: intent.MountPath, SELinux: intent.SELinuxMountContext,
	}
	if old := r.Pods[intent.PodUID]; old != nil && old.Path == next.Path {
		if old.SELinux == next.SELinux || undoes(intent.Kind) {
			return false
		}
		next.Mount = old.Mount
	}
	if r.Pods == nil {
		r.Pods = make(map[types.UID]*SetUp, 1)
	}
	r.Pods[intent.PodUID] = next
	return true
}

// drop removes the part that an intent is about, and reports whether that changed the record.
func (r *Record) drop(intent operationexecutor.Intent) bool {
	switch partOf(intent) {
	case partAttachment:
		changed := r.Attachment != nil
		r.Attachment = nil
		return changed
	case partStaging:
		changed := r.Staging != nil
		r.Staging = nil
		return changed
	default:
		_, changed := r.Pods[intent.PodUID]
		delete(r.Pods, intent.PodUID)
		return changed
	}
}
