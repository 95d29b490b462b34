package populate

import (
	"context"

	v1 "k8s.io/api/core/v1"
)

// Populator fills new volumes for claims whose data source is of one kind. Its methods may be called from several goroutines at once,
// for one volume by one at a time.
type Populator interface {
	// Populate writes the content that the claim asks for into an empty directory, and returns its digest, "sha256:..." for example,
	// which is kept on the volume. It checks what it reads before it returns. With an error, or after a crash, the volume is emptied
	// and filled from the start. An error that matches volume.ErrTransient only says that the source is not ready. It must return soon
	// after ctx has ended, and use the directory no more then. There is no other limit to its time.
	Populate(ctx context.Context, request Request) (digest string, err error)
}

// Request is what a populator fills. It must not change the objects.
type Request struct {
	// Claim is the claim; its data source says what to fill the volume from.
	Claim *v1.PersistentVolumeClaim
	// Volume is the volume, which no pod uses yet.
	Volume *v1.PersistentVolume
	// Dir is the absolute path of the root of the volume's filesystem, mounted for writing and empty.
	Dir string
	// Report says how far the populator is. It may be called as often as there is news, from any goroutine, and does not wait.
	Report func(Progress)
}

// Progress is how far a populator is.
type Progress struct {
	// Done is how many bytes are written; Total how many there will be, 0 if that is not known.
	Done, Total int64
}

// Filesystems mounts the new volumes that populators fill. Its methods may be called from several goroutines at once, for one volume by
// one at a time.
type Filesystems interface {
	// Fill mounts the filesystem of pv for writing, removes everything in it, and calls fill with the absolute path of its root. After
	// that it writes the filesystem to stable storage and unmounts it. It returns nil only if all of that has succeeded. It must end soon
	// after ctx has ended, and fill has returned then. After an error, the volume may still be mounted. A volume that an earlier
	// process left mounted is no error. pv must not be changed.
	Fill(ctx context.Context, pv *v1.PersistentVolume, fill func(ctx context.Context, dir string) error) error
	// Release unmounts and detaches what a Fill of this process or an earlier one left of pv. It returns nil when nothing of that is
	// there any more, also if nothing ever was. pv must not be changed.
	Release(ctx context.Context, pv *v1.PersistentVolume) error
}
