package csidriver

import (
	"context"
	"fmt"
	"maps"
	"os"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/volume"
)

// SnapshotCall is a call about a snapshot or a group that does not get the parameters of a class.
type SnapshotCall struct {
	// Method is the call of the specification: "GetSnapshot", "ListSnapshots", "DeleteSnapshot", "GetVolumeGroupSnapshot" or
	// "DeleteVolumeGroupSnapshot".
	Method string
	// Handle is the handle of the snapshot or the group; empty for a list of all.
	Handle string
}

// SnapshotSecrets returns the secret for a call about a snapshot. CreateSnapshot has the reference in its parameters.
// The other calls have only a handle: Kubernetes keeps the reference in annotations of the VolumeSnapshotContent.
type SnapshotSecrets interface {
	// SnapshotSecret returns the reference; nil without an error if there is none.
	SnapshotSecret(ctx context.Context, call SnapshotCall) (*v1.SecretReference, error)
}

// SnapshotClassSecrets returns the secrets of a driver whose snapshots all have one class, or classes with the same
// secrets. parameters are the parameters of the class. If one of Kubernetes' own is unknown, or depends on the
// snapshot, the error matches [volume.ErrInvalid].
func SnapshotClassSecrets(parameters map[string]string) (SnapshotSecrets, error) {
	split, err := splitSnapshotParameters(parameters)
	if err != nil {
		return nil, err
	}
	return split.refs, nil
}

// The purposes of the secrets of a snapshot class.
const (
	snapshotterSecret         = "snapshotter"
	snapshotterListSecret     = "snapshotter-list"
	groupSnapshotterSecret    = "group-snapshotter"
	groupSnapshotterGetSecret = "group-snapshotter-get"
)

// secretOfCall returns the purpose of a call's secret.
var secretOfCall = map[string]string{
	"GetSnapshot": snapshotterListSecret, "ListSnapshots": snapshotterListSecret, "DeleteSnapshot": snapshotterSecret,
	"GetVolumeGroupSnapshot": groupSnapshotterGetSecret, "DeleteVolumeGroupSnapshot": groupSnapshotterSecret,
}

// SnapshotSecret implements [SnapshotSecrets] with the references of a class.
func (c classSecrets) SnapshotSecret(_ context.Context, call SnapshotCall) (*v1.SecretReference, error) {
	return c[secretOfCall[call.Method]].DeepCopy(), nil
}

// secretsFor returns the secrets of a call.
func (n snapshots) secretsFor(ctx context.Context, call SnapshotCall) (map[string]string, error) {
	if n.client.options.SnapshotSecrets == nil {
		return nil, nil
	}
	ref, err := n.client.options.SnapshotSecrets.SnapshotSecret(ctx, call)
	if err != nil {
		return nil, volume.Transient(fmt.Errorf("driver %q: secret for %s of %q: %w", n.client.options.Driver, call.Method, call.Handle, err))
	}
	return n.client.options.secret(ctx, ref)
}

// snapshotParameters are the split parameters of a snapshot or group snapshot class.
type snapshotParameters struct {
	own  map[string]string // the driver's, with the names of the objects
	refs classSecrets
}

// snapshotNames are the parameters with which Kubernetes names its objects to a driver. Names of secrets may contain
// these values.
var snapshotNames = map[string]string{
	"volumesnapshot/name": "volumesnapshot.name", "volumesnapshot/namespace": "volumesnapshot.namespace",
	"volumesnapshotcontent/name": "volumesnapshotcontent.name",
	"volumegroupsnapshot/name":   "volumegroupsnapshot.name", "volumegroupsnapshot/namespace": "volumegroupsnapshot.namespace",
	"volumegroupsnapshotcontent/name": "volumegroupsnapshotcontent.name",
}

// splitSnapshotParameters splits the parameters of a snapshot or group snapshot class.
func splitSnapshotParameters(parameters map[string]string) (snapshotParameters, error) {
	split := snapshotParameters{own: maps.Clone(parameters), refs: classSecrets{}}
	names := map[string]string{}
	for key, value := range parameters {
		if template, ok := snapshotNames[strings.TrimPrefix(key, parameterPrefix)]; ok {
			names[template] = value
		}
	}
	for key, value := range parameters {
		name, isKubernetes := strings.CutPrefix(key, parameterPrefix)
		if _, isName := snapshotNames[name]; !isKubernetes || isName {
			continue
		}
		delete(split.own, key)
		if err := split.refs.setSnapshotter(name, value, names); err != nil {
			return snapshotParameters{}, fmt.Errorf("class parameter %q: %w", key, err)
		}
	}
	return split, split.refs.checkWhole()
}

// setSnapshotter reads one parameter, without the prefix.
func (c classSecrets) setSnapshotter(name, value string, names map[string]string) error {
	purpose, isName := strings.CutSuffix(name, secretNameEnd)
	purpose, isSpace := strings.CutSuffix(purpose, secretSpaceEnd)
	switch purpose {
	case snapshotterSecret, snapshotterListSecret, groupSnapshotterSecret, groupSnapshotterGetSecret:
	default:
		isName, isSpace = false, false
	}
	if isName == isSpace {
		return fmt.Errorf("it is not known: %w", volume.ErrInvalid)
	}
	filled, err := fillNames(value, isName, names)
	if err != nil {
		return err
	}
	c.put(purpose, filled, isName)
	return nil
}

// fillNames expands a template with the names of objects. The author of a snapshot must not choose the namespace of a
// secret by its name.
func fillNames(template string, isName bool, names map[string]string) (string, error) { //nolint:revive // It says of what it is the template.
	var unknown string
	filled := os.Expand(template, func(key string) string {
		chosen := key == "volumesnapshot.name" || key == "volumegroupsnapshot.name"
		if value, ok := names[key]; ok && (isName || !chosen) {
			return value
		}
		unknown = key
		return ""
	})
	if unknown != "" {
		return "", fmt.Errorf("nothing is known for ${%s}: %w", unknown, volume.ErrInvalid)
	}
	if filled == "" {
		return "", fmt.Errorf("it is empty: %w", volume.ErrInvalid)
	}
	return filled, nil
}
