package fake

import (
	"context"
	"fmt"

	"github.com/volumekit/volumekit/volume"
)

// Method names one call of a plugin, by the name of the interface's method.
type Method string

// The methods that are logged and that can be made to fail.
const (
	MethodInit               Method = "Init"
	MethodNewMounter         Method = "NewMounter"
	MethodNewUnmounter       Method = "NewUnmounter"
	MethodCanMount           Method = "CanMount"
	MethodSetUp              Method = "SetUp"
	MethodTearDown           Method = "TearDown"
	MethodGetMetrics         Method = "GetMetrics"
	MethodAttach             Method = "Attach"
	MethodWaitForAttach      Method = "WaitForAttach"
	MethodVolumesAreAttached Method = "VolumesAreAttached"
	MethodBulkVerifyVolumes  Method = "BulkVerifyVolumes"
	MethodListAttachments    Method = "ListAttachments"
	MethodDetach             Method = "Detach"
	MethodMountDevice        Method = "MountDevice"
	MethodUnmountDevice      Method = "UnmountDevice"
	MethodProvision          Method = "Provision"
	MethodDelete             Method = "Delete"
	MethodRecycle            Method = "Recycle"

	MethodCreateSnapshot      Method = "CreateSnapshot"
	MethodGetSnapshot         Method = "GetSnapshot"
	MethodDeleteSnapshot      Method = "DeleteSnapshot"
	MethodListSnapshots       Method = "ListSnapshots"
	MethodCreateGroupSnapshot Method = "CreateGroupSnapshot"
	MethodGetGroupSnapshot    Method = "GetGroupSnapshot"
	MethodDeleteGroupSnapshot Method = "DeleteGroupSnapshot"

	MethodExpandVolume    Method = "ExpandVolumeDevice"
	MethodNodeExpand      Method = "NodeExpand"
	MethodModifyVolume    Method = "ModifyVolume"
	MethodGetCapacity     Method = "GetCapacity"
	MethodGetVolumeLimits Method = "GetVolumeLimits"
	MethodSetUpDevice     Method = "SetUpDevice"
	MethodMapPodDevice    Method = "MapPodDevice"
	MethodUnmapPodDevice  Method = "UnmapPodDevice"
	MethodTearDownDevice  Method = "TearDownDevice"
)

// Effect says whether a call that is hit by a [Fault] does its work.
type Effect uint8

// The effects. The zero value does not do the work.
const (
	// EffectNone skips the work: an error is then what it seems to be, and a nil error is a lie.
	EffectNone Effect = iota
	// EffectDone does the work first: an error then hides a success.
	EffectDone
)

// Fault is what calls of one method do instead of their plain work. Its parts apply in the order of the fields: wait,
// panic, work, error. The zero value reports success without doing anything.
type Fault struct {
	// Times is how many calls are hit; 0 means one, a negative number means every call from then on.
	Times int
	// Until makes the call wait until the channel is closed or its ctx ends; when ctx ends first, the call returns an
	// error that matches volume.ErrUncertain and the cause of ctx, and does nothing else. Nil does not wait.
	Until <-chan struct{}
	// Uninterruptible makes the wait for Until ignore ctx, as an uninterruptible system call does.
	Uninterruptible bool
	// Panic is the value to panic with; nil does not panic.
	Panic any
	// Effect says whether the work is done.
	Effect Effect
	// Err is what the call returns. Mark its class with volume.Uncertain or volume.Transient. Nil returns success, or
	// with EffectDone whatever the work returned.
	Err error
}

// Fail returns a fault that does nothing and fails once with err.
func Fail(err error) Fault { return Fault{Err: err} }

// FailN returns a fault that does nothing and fails n times with err; a negative n fails for ever.
func FailN(n int, err error) Fault { return Fault{Times: n, Err: err} }

// FailAfter returns a fault that does the work once and then reports err: a success that looks like a failure.
func FailAfter(err error) Fault { return Fault{Effect: EffectDone, Err: err} }

// SkipWork returns a fault that reports success once without doing anything.
func SkipWork() Fault { return Fault{} }

// HangUntil returns a fault that holds one call until release is closed, and then does the work. A call whose ctx ends
// before returns an error that matches volume.ErrUncertain.
func HangUntil(release <-chan struct{}) Fault { return Fault{Until: release, Effect: EffectDone} }

// HangUninterruptible is [HangUntil] for a call that does not notice that its ctx has ended.
func HangUninterruptible(release <-chan struct{}) Fault {
	return Fault{Until: release, Uninterruptible: true, Effect: EffectDone}
}

// PanicWith returns a fault that panics once with value.
func PanicWith(value any) Fault { return Fault{Panic: value} }

// wait holds the call as the fault says.
func (f Fault) wait(ctx context.Context) error {
	if f.Until == nil {
		return nil
	}
	if f.Uninterruptible {
		<-f.Until
		return nil
	}
	select {
	case <-f.Until:
		return nil
	case <-ctx.Done():
		return volume.Uncertain(fmt.Errorf("fault: hung until the context ended: %w", context.Cause(ctx)))
	}
}

// run is the call with the fault.
func (f Fault) run(ctx context.Context, work func() error) error {
	if err := f.wait(ctx); err != nil {
		return err
	}
	if f.Panic != nil {
		panic(f.Panic)
	}
	var err error
	if f.Effect == EffectDone {
		err = work()
	}
	if f.Err != nil {
		return f.Err
	}
	return err
}

// faultQueue holds the faults of one method in order. Its owner locks it.
type faultQueue []Fault

// next takes the fault of the next call, and false when there is none.
func (q *faultQueue) next() (Fault, bool) {
	if len(*q) == 0 {
		return Fault{}, false
	}
	head := &(*q)[0]
	fault := *head
	switch {
	case head.Times < 0:
	case head.Times > 1:
		head.Times--
	default:
		*q = (*q)[1:]
	}
	return fault, true
}
