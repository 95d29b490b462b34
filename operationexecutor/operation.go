package operationexecutor

import "github.com/volumekit/volumekit/internal/outcome"

// OperationKind is what an operation does; its text is the operation's name in metrics, as kubelet 1.36 has it.
type OperationKind string

// The kinds of operation.
const (
	OpAttach        OperationKind = "volume_attach"
	OpDetach        OperationKind = "volume_detach"
	OpMount         OperationKind = "volume_mount"
	OpUnmount       OperationKind = "volume_unmount"
	OpUnmountDevice OperationKind = "unmount_device"
)

// Result is how an operation ended.
type Result struct {
	// Class is done, transient, uncertain or final.
	Class Class
	// Err is the error; nil when the class is done. It is a [volume.Error].
	Err error
}

// Class is how an operation ended.
type Class = outcome.Class

// The classes. See volume.Mounter for what each says about the world.
const (
	Done      = outcome.Done
	Transient = outcome.Transient
	Uncertain = outcome.Uncertain
	Final     = outcome.Final
)
