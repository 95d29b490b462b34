package populate

import (
	"context"

	v1 "k8s.io/api/core/v1"
)

// Populator fills new volumes for claims whose data source is of one kind. Its methods may be called from several goroutines at once,
// for one volume by one at a time.
type Populator interface {
	// Populate writes the content of the claim's data source into an empty directory, and returns its digest, such as
	// "sha256:...", which is kept on the volume. It checks what it reads before it returns. After an error or a crash,
	// the volume is emptied and filled from the beginning. An error that matches volume.ErrTransient says only that the
	// source is not ready. Populate must return soon after ctx has ended, and must not use the directory after that.
	// Its time has no other limit.
	Populate(ctx context.Context, request Request) (digest string, err error)
}

// Request is the input of a populator. The populator must not change the objects.
type Request struct {
	// Claim is the claim; its data source names the content.
	Claim *v1.PersistentVolumeClaim
	// Volume is the volume, which no pod uses yet.
	Volume *v1.PersistentVolume
	// Dir is the absolute path of the root of the volume's filesystem, mounted for writing and empty.
	Dir string
	// Report reports the progress. It may be called at any time and from any goroutine, and does not wait.
	Report func(Progress)
}

// Progress is the progress of a populator.
type Progress struct {
	// Done is the number of bytes written; Total the number of all bytes, 0 if that is unknown.
	Done, Total int64
}

// Filesystems mounts the new volumes that populators fill. Its methods may be called from several goroutines at once, for one volume by
// one at a time.
type Filesystems interface {
	// Fill mounts the filesystem of pv writable, removes everything in it, and calls fill with the absolute path of its
	// root. Then it syncs the filesystem and unmounts it. It returns nil only if all of that succeeds. It must return
	// soon after ctx has ended, and only after fill has returned. After an error, the volume may still be mounted. If
	// an earlier process left the volume mounted, that is no error. Fill must not change pv.
	Fill(ctx context.Context, pv *v1.PersistentVolume, fill func(ctx context.Context, dir string) error) error
	// Release unmounts and detaches what a Fill of this or an earlier process left of pv. It returns nil when nothing
	// is left, also if there never was anything. Release must not change pv.
	Release(ctx context.Context, pv *v1.PersistentVolume) error
}
