package operationexecutor

import (
	"log/slog"
	"sync"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/volume"
)

// OperationGenerator makes the operations that an executor begins. Generating does no I/O, calls no plugin and does not
// fail. All failures happen in the operation, so they get back-off. [NewOperationGenerator] returns the real one.
type OperationGenerator interface {
	// GenerateAttachVolumeFunc makes the operation that attaches v.
	GenerateAttachVolumeFunc(v VolumeToAttach, actualState ActualStateOfWorldAttacherUpdater) *Operation
	// GenerateDetachVolumeFunc makes the operation that detaches v.
	GenerateDetachVolumeFunc(v AttachedVolume, options DetachOptions, actualState ActualStateOfWorldAttacherUpdater) *Operation
	// GenerateMountVolumeFunc makes the operation that stages v where needed and sets it up.
	GenerateMountVolumeFunc(v VolumeToMount, options MountOptions, actualState ActualStateOfWorldMounterUpdater) *Operation
	// GenerateUnmountVolumeFunc makes the operation that tears v down.
	GenerateUnmountVolumeFunc(v MountedVolume, actualState ActualStateOfWorldMounterUpdater) *Operation
	// GenerateUnmountDeviceFunc makes the operation that unstages v.
	GenerateUnmountDeviceFunc(v AttachedVolume, actualState ActualStateOfWorldMounterUpdater) *Operation
	// GenerateMapVolumeFunc makes the operation that maps the block volume v for a pod.
	GenerateMapVolumeFunc(v VolumeToMount, options MountOptions, actualState ActualStateOfWorldMounterUpdater) *Operation
	// GenerateUnmapVolumeFunc makes the operation that takes the block volume v away from a pod.
	GenerateUnmapVolumeFunc(v MountedVolume, actualState ActualStateOfWorldMounterUpdater) *Operation
	// GenerateUnmapDeviceFunc makes the operation that undoes what was prepared for the pods of the block volume v.
	GenerateUnmapDeviceFunc(v AttachedVolume, actualState ActualStateOfWorldMounterUpdater) *Operation
	// GenerateVolumesAreAttachedFunc makes the operation that asks a plugin which of its volumes a node still has.
	GenerateVolumesAreAttachedFunc(volumes []AttachedVolume, nodeName types.NodeName, pluginName string, actualState ActualStateOfWorldAttacherUpdater) *Operation
	// GenerateBulkVolumeVerifyFunc is the same for several nodes in one call.
	GenerateBulkVolumeVerifyFunc(volumesByNode map[types.NodeName][]AttachedVolume, pluginName string, actualState ActualStateOfWorldAttacherUpdater) *Operation
	// GenerateVerifyControllerAttachedVolumeFunc makes the operation that takes v as attached when the node's status says
	// so. It alone may refuse at once: the error is a [*MountPreconditionError].
	GenerateVerifyControllerAttachedVolumeFunc(v VolumeToMount, nodeName types.NodeName, actualState ActualStateOfWorldAttacherUpdater) (*Operation, error)
	// GenerateExpandVolumeFunc makes the operation that expands the storage behind v.
	GenerateExpandVolumeFunc(v VolumeToExpand) *Operation
	// GenerateModifyVolumeFunc makes the operation that gives v the attributes of the class that its claim names.
	GenerateModifyVolumeFunc(v VolumeToModify) *Operation
	// GenerateExpandInUseVolumeFunc makes the operation that expands v, which has currentSize, where it is mounted.
	GenerateExpandInUseVolumeFunc(v VolumeToMount, actualState ActualStateOfWorldMounterUpdater, currentSize resource.Quantity) *Operation
	// GenerateReconstructVolumeFunc makes the operation that asks the plugin what v is, and calls found with the answer.
	GenerateReconstructVolumeFunc(v VolumeToReconstruct, found func(volume.ReconstructedVolume)) *Operation
	// GetVolumePluginMgr returns the registry of plugins.
	GetVolumePluginMgr() *volume.VolumePluginMgr
}

// GeneratorOptions says what operations use. Only Plugins is required.
type GeneratorOptions struct {
	// Plugins is the registry of plugins. Required.
	Plugins *volume.VolumePluginMgr
	// Journal keeps intents. Nil: none is kept, and what a crash leaves behind is not known afterwards.
	Journal Journal
	// DeviceUse tells whether a device is still open after it was unstaged. Nil: it is not asked.
	DeviceUse DeviceUse
	// BlockMapper binds block devices for pods. Nil: block volumes are refused.
	BlockMapper BlockMapper
	// NodeReader tells what a node uses. Nil: a detach that is to be verified fails.
	NodeReader NodeReader
	// Reporter withdraws a volume from the report to its node. Nil means that the caller has done so before it starts a
	// detach.
	Reporter AttachmentReporter
	// NodeLabels tells the labels of this node. Nil: the node affinity of PersistentVolumes is not checked.
	NodeLabels NodeLabels
	// Claims reads and writes claims whose volumes are expanded. Nil: nothing is expanded while it is mounted, and other
	// expansions fail.
	Claims ClaimStatus
	// Capacity writes the size of a PersistentVolume that was expanded. Nil: expansions by the control plane fail.
	Capacity VolumeCapacity
	// Attributes reads classes and writes how far a modification has come. Nil: modifications fail.
	Attributes VolumeAttributes
	// Mounts tells whether something is mounted where a plugin says that it is, or that it is not. Nil: plugins are
	// believed.
	Mounts MountPoints
	// Subpaths unmounts the sub-paths of a volume from containers before the volume is torn down. Nil means that the
	// program binds none.
	Subpaths Subpaths
	// Recorder gets events. Nil: they are dropped.
	Recorder volume.EventRecorder
	// Logger gets journal entries that could not be concluded. Nil: it is discarded.
	Logger *slog.Logger
}

// generator makes operations that call the plugins of a registry. It is immutable, but for memory that is used again.
type generator struct {
	plugins    *volume.VolumePluginMgr
	journal    Journal
	deviceUse  DeviceUse
	blocks     BlockMapper
	nodeReader NodeReader
	reporter   AttachmentReporter
	nodeLabels NodeLabels
	claims     ClaimStatus
	capacity   VolumeCapacity
	attributes VolumeAttributes
	mounts     MountPoints
	subpaths   Subpaths
	recorder   volume.EventRecorder
	logger     *slog.Logger
	texts      sync.Pool // of *[]byte
}

var _ OperationGenerator = (*generator)(nil)

// NewOperationGenerator returns a generator of options.
func NewOperationGenerator(options GeneratorOptions) OperationGenerator {
	g := &generator{
		plugins:    options.Plugins,
		journal:    options.Journal,
		deviceUse:  options.DeviceUse,
		blocks:     options.BlockMapper,
		nodeReader: options.NodeReader,
		reporter:   options.Reporter,
		nodeLabels: options.NodeLabels,
		claims:     options.Claims,
		capacity:   options.Capacity,
		attributes: options.Attributes,
		mounts:     options.Mounts,
		subpaths:   options.Subpaths,
		recorder:   options.Recorder,
		logger:     options.Logger,
	}
	if g.logger == nil {
		g.logger = slog.New(slog.DiscardHandler)
	}
	return g
}

// GetVolumePluginMgr implements [OperationGenerator].
func (g *generator) GetVolumePluginMgr() *volume.VolumePluginMgr { return g.plugins }
