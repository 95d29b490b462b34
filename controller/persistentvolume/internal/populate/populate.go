// Package populate runs the populators that fill new volumes, in its own goroutines: a filling takes as long as its
// source needs, and occupies no worker.
package populate

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/controller/internal/call"
	"github.com/volumekit/volumekit/internal/outcome"
	"github.com/volumekit/volumekit/volume"
)

const (
	// unlimited is the deadline of a filling: its source decides how long it takes.
	unlimited = 100 * 365 * 24 * time.Hour
	// releaseTimeout bounds the release of a volume after its filling has failed or the controller was stopped.
	releaseTimeout = time.Minute
	// reportInterval is the least time between two reports of progress.
	reportInterval = 10 * time.Second
)

// Fillings holds the volumes that are being filled, and those whose result is not recorded yet, by name. Make it with
// [New]. Its methods may be called from several goroutines at once.
type Fillings struct {
	filesystems Filesystems
	calls       *call.Calls

	mu      sync.Mutex
	all     map[string]*filling
	running sync.WaitGroup
}

// filling is one attempt to fill a volume. Fillings.mu guards it.
type filling struct {
	job      Job
	stopped  <-chan struct{} // closed when the controller stops
	cancel   context.CancelFunc
	canceled bool
	ended    bool
	reported time.Time
	digest   string
	err      error
}

// Job is a request to fill a volume. All fields are required.
type Job struct {
	// Attempt is the id of this attempt, as on the volume.
	Attempt string
	// Populator fills Volume for Claim. Kind names the kind of the data source in errors.
	Claim     *v1.PersistentVolumeClaim
	Volume    *v1.PersistentVolume
	Populator Populator
	Kind      string
	// Report gets the progress, not more often than every ten seconds. Ended is called when the filling has ended, with any result.
	Report func(Progress)
	Ended  func()
}

// Result is the state of the filling of a volume.
type Result struct {
	// Running says that it has not ended.
	Running bool
	// Attempt is the id of the attempt that ended. Digest is the result of its populator.
	Attempt, Digest string
	// Err is why the volume is not full.
	Err error
}

// New returns Fillings. timeout bounds each release of a volume. If filesystems is nil, no volume can be filled or
// released.
func New(filesystems Filesystems, timeout time.Duration) *Fillings {
	return &Fillings{filesystems: filesystems, calls: call.New(timeout), all: map[string]*filling{}}
}

// CanMount reports whether volumes can be filled.
func (f *Fillings) CanMount() bool { return f.filesystems != nil }

// Abandoned returns the names of the abandoned calls that still run.
func (f *Fillings) Abandoned() []string { return f.calls.Running() }

// Wait waits until every filling has ended. Their context must have ended.
func (f *Fillings) Wait() { f.running.Wait() }

// Start starts to fill a volume in a goroutine. ctx must be the controller's. Start does nothing if the volume is
// known: see [Fillings.Look].
func (f *Fillings) Start(ctx context.Context, job Job) {
	stopped := ctx.Done()
	ctx, cancel := context.WithCancel(ctx)
	started := &filling{job: job, stopped: stopped, cancel: cancel}
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, known := f.all[job.Volume.Name]; known {
		cancel()
		return
	}
	f.all[job.Volume.Name] = started
	f.running.Go(func() {
		defer cancel()
		digest, err := f.fill(ctx, started)
		f.end(started, digest, err)
		job.Ended()
	})
}

// Result returns the state of the filling of a volume, and false if there is none. A volume of the same name with another
// UID is another object for the same storage: its filling is canceled, and forgotten when it has ended.
func (f *Fillings) Result(name string, uid types.UID) (Result, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	known, ok := f.all[name]
	if !ok {
		return Result{}, false
	}
	if known.job.Volume.UID != uid {
		f.drop(known)
		return Result{Running: !known.ended}, !known.ended
	}
	return Result{Running: !known.ended, Attempt: known.job.Attempt, Digest: known.digest, Err: known.err}, true
}

// Forget forgets a filling that has ended.
func (f *Fillings) Forget(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if known := f.all[name]; known != nil && known.ended {
		delete(f.all, name)
	}
}

// Cancel cancels the filling of a volume and forgets its result. It reports whether the filling still runs. If so, its
// Ended is called later.
func (f *Fillings) Cancel(name string) (running bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	known := f.all[name]
	if known == nil {
		return false
	}
	f.drop(known)
	return !known.ended
}

// The caller holds f.mu.
func (f *Fillings) drop(known *filling) {
	known.canceled = true
	known.cancel()
	if known.ended {
		delete(f.all, known.job.Volume.Name)
	}
}

// Release unmounts what a filling left mounted. No filling of the volume may run.
func (f *Fillings) Release(ctx context.Context, pv *v1.PersistentVolume) error {
	if f.filesystems == nil {
		return fmt.Errorf("volume %q may still be mounted by a populator: give the controller Options.Filesystems: %w", pv.Name, volume.ErrInvalid)
	}
	name := call.Call{Plugin: "filesystems of populators", Method: "Release", Object: fmt.Sprintf("volume %q", pv.Name)}
	err := f.calls.Do(ctx, name, func(ctx context.Context) error { return f.filesystems.Release(ctx, pv.DeepCopy()) })
	if err != nil {
		return fmt.Errorf("volume %q may still be mounted by a populator: %w", pv.Name, err)
	}
	return nil
}

// fill fills the volume once. The volume is unmounted afterwards, unless fill returns an error of the release.
func (f *Fillings) fill(ctx context.Context, filling *filling) (digest string, err error) {
	job := filling.job
	name := call.Call{Plugin: job.Kind, Method: "Populate", Object: fmt.Sprintf("volume %q", job.Volume.Name), AtLeast: unlimited}
	err = f.calls.Do(ctx, name, func(ctx context.Context) error {
		return f.filesystems.Fill(ctx, job.Volume.DeepCopy(), func(ctx context.Context, dir string) (err error) {
			digest, err = job.Populator.Populate(ctx, Request{
				Claim: job.Claim.DeepCopy(), Volume: job.Volume.DeepCopy(), Dir: dir,
				Report: func(progress Progress) { f.report(filling, progress) },
			})
			if err == nil && digest == "" {
				err = fmt.Errorf("the populator of %s returned no digest: %w", job.Kind, volume.ErrInvalid)
			}
			return err
		})
	})
	switch {
	case err == nil && digest == "":
		return "", fmt.Errorf("volume %q was not filled: Filesystems did not call its populator: %w", job.Volume.Name, volume.ErrInvalid)
	case err == nil:
		return digest, nil
	}
	if !awaitEnd(filling, err) {
		return "", err
	}
	after, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	if released := f.Release(after, job.Volume); released != nil {
		err = errors.Join(err, released)
		awaitEnd(filling, released)
	}
	return "", err
}

// awaitEnd waits until an abandoned call has returned: until then nothing else may use the volume. It returns false if
// the controller ends before. A canceled filling does not end the wait.
func awaitEnd(filling *filling, err error) (ended bool) {
	done := outcome.DoneOf(err)
	if done == nil {
		return true
	}
	select {
	case <-done:
		return true
	case <-filling.stopped:
		return false
	}
}

func (f *Fillings) end(ended *filling, digest string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	ended.ended, ended.digest, ended.err = true, digest, err
	if ended.canceled {
		delete(f.all, ended.job.Volume.Name)
	}
}

// report forwards progress, unless the last report is recent or the filling was canceled.
func (f *Fillings) report(filling *filling, progress Progress) {
	f.mu.Lock()
	now := time.Now()
	due := !filling.ended && !filling.canceled && now.Sub(filling.reported) >= reportInterval
	if due {
		filling.reported = now
	}
	f.mu.Unlock()
	if due {
		filling.job.Report(progress)
	}
}
