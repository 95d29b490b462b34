package loopblock

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/mount/format"
	"github.com/volumekit/volumekit/mount/image"
	"github.com/volumekit/volumekit/volume"
)

// namesSnapshot reports whether the data source of a claim is a snapshot.
func namesSnapshot(claim *v1.PersistentVolumeClaim) bool {
	const group, kind = "snapshot.storage.k8s.io", "VolumeSnapshot"
	if source := claim.Spec.DataSource; source != nil {
		return source.Kind == kind && source.APIGroup != nil && *source.APIGroup == group
	}
	ref := claim.Spec.DataSourceRef
	return ref != nil && ref.Kind == kind && ref.APIGroup != nil && *ref.APIGroup == group
}

// fromSnapshot changes a request into one for a restored volume.
func (r *request) fromSnapshot(options volume.VolumeOptions) error {
	err := volume.CheckRestoreSize(options.PVC, options.Snapshot)
	if err == nil {
		r.asked, err = volume.RequestedBytes(options.PVC)
	}
	if err != nil {
		return err
	}
	r.origin = origin{snapshot: options.Snapshot.Handle}
	r.chosen = options.Parameters[volume.VolumeParameterFSType]
	return nil
}

// resolve completes a request for a restored volume from the record of the snapshot. If there is no such snapshot, only
// a volume that was restored before can be found.
func (s *snapshots) resolve(ctx context.Context, dir *image.Dir, r request) (request, error) {
	block := r.fsType == noFilesystem
	record, member, err := s.recordOf(ctx, r.origin.snapshot)
	if errors.Is(err, volume.ErrNotFound) {
		r.origin.gone = true
		if !block {
			r.fsType = typeOfExisting(ctx, dir, r)
		}
		return r, nil
	}
	if err != nil {
		return r, err
	}
	m := record.Members[member]
	switch {
	case block != (m.FSType == noFilesystem):
		return r, fmt.Errorf("snapshot %q has another volumeMode than the claim: %w", r.origin.snapshot, volume.ErrInfeasible)
	case !block && r.chosen != "" && r.chosen != m.FSType:
		return r, fmt.Errorf("snapshot %q has %s and the class parameter %s is %q: a restored volume has what its snapshot has: %w",
			r.origin.snapshot, m.FSType, volume.VolumeParameterFSType, r.chosen, volume.ErrInfeasible)
	case r.asked < m.Size:
		return r, &volume.RestoreSizeError{Snapshot: r.origin.snapshot, Requested: r.asked, RestoreSize: m.Size}
	}
	r.fsType, r.origin.record, r.origin.member = m.FSType, record, member
	r.size, err = imageSize(max(r.asked, m.Size), r.fsType)
	return r, err
}

// typeOfExisting returns the filesystem of a volume if it exists, otherwise that of the request.
func typeOfExisting(ctx context.Context, dir *image.Dir, r request) string {
	file, err := dir.Open(r.handle+imageSuffix, os.O_RDONLY)
	if err != nil {
		return r.fsType
	}
	defer file.Close()
	found, err := format.ProbeFile(ctx, file)
	if err != nil {
		return r.fsType
	}
	return found.Type
}

// restore fills the partial image with the content of a snapshot, expands it to the requested size and gives its
// filesystem a new identity. If the snapshot is deleted meanwhile, restore still reads all of it.
func (s *snapshots) restore(ctx context.Context, to *os.File, r request) error {
	if r.origin.gone {
		return fmt.Errorf("snapshot %q does not exist any more: %w: %w", r.origin.snapshot, volume.ErrInfeasible, volume.ErrNotFound)
	}
	name := r.origin.record.imageName(r.origin.member)
	_, err := image.With(ctx, s.mounts.devices.images.dir, name, func(from *os.File) (struct{}, error) {
		c := copying{copies: s.copies, request: r, from: from, to: to}
		if err := c.quiet(ctx); err != nil {
			return struct{}{}, err
		}
		return struct{}{}, c.renew(ctx)
	})
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w: %w", volume.ErrNotFound, err)
	}
	if err != nil {
		return fmt.Errorf("restoring snapshot %q: %w", r.origin.snapshot, err)
	}
	return nil
}
