package attachdetach

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/internal/cluster"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// lister finds attachments that are on no record. It belongs to one goroutine.
type lister struct {
	plugins  *volume.VolumePluginMgr
	executor *operationexecutor.Executor
	actual   *cluster.ActualStateOfWorld
	records  *attachmentRecords
	foreign  *foreignAttachments
	volumes  *store.Mirror[*v1.PersistentVolume]
	events   *events
	logger   *slog.Logger
	running  map[string]*operationexecutor.Operation // the last listing, by plugin
}

// list has every plugin that can list asked what its storage has attached. A leader that was stopped may have attached something after
// its term had ended. A plugin whose last listing still runs is not asked again.
func (l *lister) list(ctx context.Context) {
	for _, pluginName := range l.plugins.PluginNames() {
		plugin, err := l.plugins.FindAttachablePluginByName(pluginName)
		if err != nil {
			continue // It attaches nothing.
		}
		if _, lists := plugin.(volume.AttachmentLister); !lists || isRunning(l.running[pluginName]) {
			continue
		}
		op, err := l.executor.ListAttachments(ctx, pluginName, func(ctx context.Context, found []volume.Attachment) error {
			return l.adoptUnknown(ctx, pluginName, found)
		})
		if err != nil {
			l.logger.Warn("what the storage has attached cannot be listed", "plugin", pluginName, "error", err)
			continue
		}
		l.running[pluginName] = op
	}
}

func isRunning(op *operationexecutor.Operation) bool {
	if op == nil {
		return false
	}
	select {
	case <-op.Done():
		return false
	default:
		return true
	}
}

// adoptUnknown takes over as uncertain what a plugin lists and the actual state lacks: it is then confirmed where pods want it, and
// detached where none does and the node does not use it. Only volumes of PersistentVolumes in the store are taken over: other
// clusters may share the storage.
func (l *lister) adoptUnknown(ctx context.Context, pluginName string, found []volume.Attachment) error {
	unknown := map[v1.UniqueVolumeName][]types.NodeName{}
	for _, at := range found {
		a := attachment{volume.GetUniqueVolumeName(pluginName, at.VolumeName), at.NodeName}
		// What others made is honoured by their object.
		if at.NodeName != "" && l.actual.AttachState(a.volume, a.node) == cluster.NotAttached && l.foreign.attachedHere(a) == nil {
			unknown[a.volume] = append(unknown[a.volume], a.node)
		}
	}
	if len(unknown) == 0 {
		return nil
	}
	var errs []error
	for _, pv := range l.volumes.All() {
		spec := volume.NewSpecFromPersistentVolume(pv, false)
		name, err := l.plugins.UniqueVolumeName("", spec)
		if err != nil {
			continue // It has no plugin here.
		}
		for _, node := range unknown[name] {
			errs = append(errs, l.adoptOne(ctx, attachment{name, node}, pluginName, spec))
		}
		delete(unknown, name)
	}
	return errors.Join(errs...)
}

// adoptOne records that a volume may be attached to a node, so that it is not reclaimed, and takes that over.
func (l *lister) adoptOne(ctx context.Context, a attachment, pluginName string, spec *volume.Spec) error {
	intent := operationexecutor.Intent{
		Kind: operationexecutor.OpDetach, VolumeName: a.volume, PluginName: pluginName, Spec: spec, NodeName: a.node,
	}
	if err := l.records.Intend(ctx, intent); err != nil {
		return fmt.Errorf("volume %q, which is attached to node %q, cannot be written down: %w", a.volume, a.node, err)
	}
	at := operationexecutor.AttachedVolume{VolumeName: a.volume, VolumeSpec: spec, NodeName: a.node, PluginName: pluginName, PluginIsAttachable: true}
	if err := l.actual.RecoverAttachment(at, ""); err != nil {
		return fmt.Errorf("volume %q, which is attached to node %q, cannot be taken over: %w", a.volume, a.node, err)
	}
	l.events.unknownAttachment(a, spec.PersistentVolume)
	return nil
}
