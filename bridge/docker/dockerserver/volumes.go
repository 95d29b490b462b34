package dockerserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/bridge/docker/internal/protocol"
	"github.com/volumekit/volumekit/internal/abandonable"
	"github.com/volumekit/volumekit/internal/outcome"
	"github.com/volumekit/volumekit/volume"
)

// The options of docker volume create -o that are no parameters of a class.
const (
	sizeOption   = "size"
	fsTypeOption = "fsType"
)

// volumes creates, mounts, unmounts and removes volumes. Calls for one volume run one after the other.
type volumes struct {
	options Options
	plugin  volume.VolumePlugin
	host    *volume.Host
	can     volume.Capabilities
	records *records
	node    *node
	logger  *slog.Logger
	calls   *abandonable.Calls
	locks   locks
}

// volumeName matches Docker's names of volumes, with a length that fits a request.
var volumeName = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,254}$`)

func checkName(name string) error {
	if !volumeName.MatchString(name) {
		return fmt.Errorf("volume name %s: give letters, digits, '_', '.' and '-', 255 at most: %w", volume.Quote(name), volume.ErrInvalid)
	}
	return nil
}

func noSuchVolume(name string) error {
	return fmt.Errorf("volume %s: %w: create it first", volume.Quote(name), volume.ErrNotFound)
}

// create creates one volume for each name.
func (s *volumes) create(ctx context.Context, r protocol.Creation) (protocol.Nothing, error) {
	if err := checkName(r.Name); err != nil {
		return protocol.Nothing{}, err
	}
	return protocol.Nothing{}, s.locks.exclusively(ctx, r.Name, func() error { return s.createLocked(ctx, r) })
}

func (s *volumes) createLocked(ctx context.Context, r protocol.Creation) error {
	options := optionsDigest(r.Opts)
	v, known := s.records.volumes.Get(r.Name)
	switch {
	case known && v.Step == deleting:
		return fmt.Errorf("volume %s is being removed: remove it first: %w", volume.Quote(r.Name), volume.ErrInUse)
	case known && v.Options != options && v.Step == making:
		return fmt.Errorf("volume %s may exist with other options, because an earlier create did not end: create it with those, and then remove it: %w",
			volume.Quote(r.Name), volume.ErrInvalid)
	case known && v.Options != options:
		return fmt.Errorf("volume %s exists with other options: remove it, or give the same: %w", volume.Quote(r.Name), volume.ErrInvalid)
	case known && v.Step == made:
		return s.node.know(ctx, v)
	}
	v = volumeRecord{Step: making, Name: r.Name, Options: options}
	if err := s.records.volumes.Put(r.Name, v); err != nil {
		return volume.Transient(err)
	}
	spec, err := s.make(ctx, r)
	if err != nil {
		if (!known || refused(err)) && !outcome.IsUncertain(err) {
			err = errors.Join(err, s.records.volumes.Remove(r.Name))
		}
		return err
	}
	v.Step, v.PV, v.Volume, v.Created = made, spec.PersistentVolume, spec.Volume, time.Now().UTC().Format(time.RFC3339)
	if err := s.records.volumes.Put(r.Name, v); err != nil {
		return volume.Uncertain(err)
	}
	return s.node.know(ctx, v)
}

// refused reports whether an error proves that there is no effect, also of earlier attempts.
func refused(err error) bool {
	return errors.Is(err, volume.ErrInfeasible) || errors.Is(err, volume.ErrInvalid) || errors.Is(err, volume.ErrUnsupported)
}

// make creates and returns the volume of a request.
func (s *volumes) make(ctx context.Context, r protocol.Creation) (*volume.Spec, error) {
	if s.options.Source != nil {
		return s.sourceOf(r)
	}
	plugin, ok := s.plugin.(volume.ProvisionableVolumePlugin)
	if !ok || !s.can.Has(volume.CapProvision|volume.CapDelete) {
		return nil, fmt.Errorf("the plugin makes no volumes: give Options.Source: %w", volume.ErrUnsupported)
	}
	wanted, err := s.volumeOptions(r)
	if err != nil {
		return nil, err
	}
	provisioner, err := plugin.NewProvisioner(wanted)
	if err != nil {
		return nil, err
	}
	pv, err := abandonable.Value(ctx, s.calls, abandonable.Key{Path: r.Name}, func(ctx context.Context) (*v1.PersistentVolume, error) {
		return provisioner.Provision(ctx, nil, nil)
	})
	if err != nil {
		return nil, err
	}
	return volume.NewSpecFromPersistentVolume(pv.DeepCopy(), false), nil
}

// sourceOf calls Options.Source.
func (s *volumes) sourceOf(r protocol.Creation) (*volume.Spec, error) {
	spec, err := s.options.Source(r.Name, maps.Clone(r.Opts))
	switch {
	case err != nil:
		return nil, err
	case spec == nil || (spec.PersistentVolume == nil) == (spec.Volume == nil):
		return nil, fmt.Errorf("Options.Source returned no volume for %s: %w", volume.Quote(r.Name), volume.ErrInvalid)
	case spec.Volume != nil:
		own := spec.Volume.DeepCopy()
		own.Name = outerName
		return volume.NewSpecFromVolume(own), nil
	}
	pv := spec.PersistentVolume.DeepCopy()
	pv.Name = element(r.Name)
	return volume.NewSpecFromPersistentVolume(pv, false), nil
}

// volumeOptions returns the options for the plugin, which refuses unknown parameters.
func (s *volumes) volumeOptions(r protocol.Creation) (volume.VolumeOptions, error) {
	parameters := maps.Clone(s.options.Parameters)
	if parameters == nil {
		parameters = map[string]string{}
	}
	size := *resource.NewQuantity(s.options.DefaultVolumeSize, resource.BinarySI)
	for _, key := range slices.Sorted(maps.Keys(r.Opts)) {
		value := r.Opts[key]
		switch key {
		case sizeOption:
			var err error
			if size, err = sizeOf(value); err != nil {
				return volume.VolumeOptions{}, err
			}
		case fsTypeOption:
			if other, ok := r.Opts[volume.VolumeParameterFSType]; ok && other != value {
				return volume.VolumeOptions{}, fmt.Errorf("options %s and %s differ: give one: %w", fsTypeOption, volume.VolumeParameterFSType, volume.ErrInvalid)
			}
			parameters[volume.VolumeParameterFSType] = value
		default:
			parameters[key] = value
		}
	}
	filesystem := v1.PersistentVolumeFilesystem
	name := element(r.Name)
	return volume.VolumeOptions{
		PersistentVolumeReclaimPolicy: v1.PersistentVolumeReclaimDelete, PVName: name, Parameters: parameters,
		PVC: &v1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
			Spec: v1.PersistentVolumeClaimSpec{
				VolumeMode: &filesystem, AccessModes: []v1.PersistentVolumeAccessMode{s.accessMode()},
				Resources: v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: size}},
			},
		},
	}, nil
}

// accessMode returns the access mode for one writing node, if the plugin supports it.
func (s *volumes) accessMode() v1.PersistentVolumeAccessMode {
	plugin, ok := s.plugin.(volume.PersistentVolumePlugin)
	if !ok {
		return v1.ReadWriteOnce
	}
	modes := plugin.GetAccessModes()
	if len(modes) == 0 || volume.ContainsAccessMode(modes, v1.ReadWriteOnce) {
		return v1.ReadWriteOnce
	}
	return modes[0]
}

// sizeOf parses a size in bytes, such as 1Gi or 500M.
func sizeOf(text string) (resource.Quantity, error) {
	size, err := resource.ParseQuantity(text)
	if err != nil || size.Sign() <= 0 || size.MilliValue()%1000 != 0 {
		return size, fmt.Errorf("option %s %s: give bytes, such as 1Gi, 500Mi or 500M: %w", sizeOption, volume.Quote(text), volume.ErrInvalid)
	}
	return size, nil
}

func optionsDigest(options map[string]string) string {
	var parts []string
	for _, key := range slices.Sorted(maps.Keys(options)) {
		parts = append(parts, key, options[key])
	}
	return digest(parts...)
}

// remove deletes a volume and its record.
func (s *volumes) remove(ctx context.Context, r protocol.Name) (protocol.Nothing, error) {
	if err := checkName(r.Name); err != nil {
		return protocol.Nothing{}, err
	}
	return protocol.Nothing{}, s.locks.exclusively(ctx, r.Name, func() error { return s.removeLocked(ctx, r.Name) })
}

func (s *volumes) removeLocked(ctx context.Context, name string) error {
	v, ok := s.records.volumes.Get(name)
	if !ok || v.Step == making {
		return noSuchVolume(name)
	}
	if err := s.endUses(v); err != nil {
		return err
	}
	if err := s.node.release(v); err != nil {
		return err
	}
	if err := s.node.gone(ctx, v); err != nil {
		return err
	}
	if s.options.Source == nil {
		if err := s.delete(ctx, v); err != nil {
			return err
		}
	}
	if err := s.node.forget(ctx, v); err != nil {
		return err
	}
	return s.records.volumes.Remove(name)
}

// endUses removes the ids that Docker has forgotten: Docker does not remove a volume that it knows to be in use.
func (s *volumes) endUses(v volumeRecord) error {
	u, ok := s.records.uses.Get(v.Name)
	if !ok {
		return nil
	}
	if err := unusedElsewhere(u.Path, u.Mounted); err != nil {
		return fmt.Errorf("volume %s has %d uses on record: %w", volume.Quote(v.Name), len(u.IDs), err)
	}
	s.logger.Warn("uses of a volume that is removed are forgotten", "volume", v.Name, "use", u.IDs)
	return s.records.uses.Remove(v.Name)
}

// delete records the deletion and has the plugin delete the storage.
func (s *volumes) delete(ctx context.Context, v volumeRecord) error {
	plugin, ok := s.plugin.(volume.DeletableVolumePlugin)
	if !ok {
		return fmt.Errorf("the plugin deletes no volumes: %w", volume.ErrUnsupported)
	}
	deleter, err := plugin.NewDeleter(v.spec())
	if err != nil {
		return err
	}
	v.Step = deleting
	if err := s.records.volumes.Put(v.Name, v); err != nil {
		return volume.Transient(err)
	}
	err = s.calls.Do(ctx, abandonable.Key{Path: v.Name}, deleter.Delete)
	if errors.Is(err, volume.ErrInUse) && !outcome.IsUncertain(err) { // nothing of it was deleted
		v.Step = made
		return errors.Join(err, s.records.volumes.Put(v.Name, v))
	}
	return err
}

// mount adds a user to a volume.
func (s *volumes) mount(ctx context.Context, r protocol.Use) (mounted protocol.Mounted, err error) {
	if err := checkUse(r); err != nil {
		return mounted, err
	}
	err = s.locks.exclusively(ctx, r.Name, func() error {
		mounted.Mountpoint, err = s.mountLocked(ctx, r)
		return err
	})
	return mounted, err
}

func (s *volumes) mountLocked(ctx context.Context, r protocol.Use) (path string, err error) {
	v, ok := s.records.volumes.Get(r.Name)
	switch {
	case !ok || v.Step == making:
		return "", noSuchVolume(r.Name)
	case v.Step == deleting:
		return "", fmt.Errorf("volume %s is being removed: %w", volume.Quote(r.Name), volume.ErrInUse)
	}
	if err := s.records.addUse(r.Name, r.ID); err != nil {
		return "", volume.Transient(err)
	}
	path, err = s.node.setUp(ctx, v)
	if err == nil {
		err = ctx.Err() // Docker would not get the answer, and would not send Unmount
	}
	if err != nil {
		return "", errors.Join(err, s.dropUse(v, r.ID))
	}
	what, err := dirShownBy(path)
	if err != nil {
		return "", errors.Join(volume.Transient(err), s.dropUse(v, r.ID))
	}
	return path, s.records.setPath(r.Name, path, what.String())
}

// dropUse removes an id from the record. After the last one the manager starts to tear the volume down.
func (s *volumes) dropUse(v volumeRecord, id string) error {
	left, err := s.records.dropUse(v.Name, id)
	if err != nil || left > 0 {
		return err
	}
	return s.node.release(v)
}

// unmount removes a user from a volume.
func (s *volumes) unmount(ctx context.Context, r protocol.Use) (protocol.Nothing, error) {
	if err := checkUse(r); err != nil {
		return protocol.Nothing{}, err
	}
	return protocol.Nothing{}, s.locks.exclusively(ctx, r.Name, func() error { return s.unmountLocked(ctx, r) })
}

func (s *volumes) unmountLocked(ctx context.Context, r protocol.Use) error {
	v, ok := s.records.volumes.Get(r.Name)
	if !ok || v.Step == making {
		return noSuchVolume(r.Name)
	}
	if err := s.dropUse(v, r.ID); err != nil {
		return err
	}
	if _, used := s.records.uses.Get(r.Name); used {
		return nil
	}
	return s.node.gone(ctx, v)
}

func checkUse(r protocol.Use) error {
	if r.ID == "" || len(r.ID) > 256 || strings.ContainsFunc(r.ID, func(c rune) bool { return c < ' ' }) {
		return fmt.Errorf("volume %s: the id %s of the call cannot be used: %w", volume.Quote(r.Name), volume.Quote(r.ID), volume.ErrInvalid)
	}
	return checkName(r.Name)
}

// path returns the path of a volume, or "" while it is not in use.
func (s *volumes) path(_ context.Context, r protocol.Name) (protocol.Mounted, error) {
	v, err := s.known(r.Name)
	return protocol.Mounted{Mountpoint: v.Mountpoint}, err
}

func (s *volumes) get(_ context.Context, r protocol.Name) (protocol.Got, error) {
	v, err := s.known(r.Name)
	return protocol.Got{Volume: &v}, err
}

func (s *volumes) known(name string) (protocol.Volume, error) {
	v, ok := s.records.volumes.Get(name)
	if !ok || v.Step == making {
		return protocol.Volume{}, noSuchVolume(name)
	}
	shown := s.shown(v)
	shown.Status = s.node.status(v)
	return shown, nil
}

// list returns every volume, without those that are being created.
func (s *volumes) list(context.Context, protocol.Nothing) (protocol.Listed, error) {
	listed := protocol.Listed{Volumes: []protocol.Volume{}}
	for _, v := range s.records.volumes.All() {
		if v.Step != making {
			listed.Volumes = append(listed.Volumes, s.shown(v))
		}
	}
	return listed, nil
}

func (s *volumes) shown(v volumeRecord) protocol.Volume {
	u, _ := s.records.uses.Get(v.Name)
	return protocol.Volume{Name: v.Name, Mountpoint: u.Path, CreatedAt: v.Created}
}
