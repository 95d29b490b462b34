package journal

import (
	"context"
	"errors"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/podvolume"
)

// NewRecord returns a record on which nothing of the volume is yet.
func (j *Journal) NewRecord(name v1.UniqueVolumeName, plugin string, spec *volume.Spec) (Record, error) {
	encoded, err := encodeSpec(spec, j.options.Plugins.PublicKeys(plugin))
	return Record{Version: Version, BootID: j.bootID, Volume: name, Plugin: plugin, Spec: encoded, inner: spec.Name()}, err
}

// Check returns a record that was made of what was found, with the spec that it will be trusted with. It refuses what a manager
// would never have written.
func (j *Journal) Check(r Record) (Found, error) {
	spec, err := r.check(string(r.Volume), j.options.Plugins.Host())
	if err == nil {
		r.inner = spec.Name()
	}
	return Found{Record: r, Spec: spec}, err
}

// Adopt puts a volume on record that was rebuilt. What is on record of it already counts.
func (j *Journal) Adopt(ctx context.Context, r Record) error {
	release, ok := j.locks.Take(ctx.Done(), r.Volume)
	if !ok {
		return context.Cause(ctx)
	}
	defer release()
	known := j.ofVolume(r.Volume).record
	if known.inner != "" && known.inner != r.inner {
		return errors.Join(j.adoptPods(r), j.adopt(merge(known, r.withoutPods()).clone()))
	}
	return j.adopt(merge(known, r).clone())
}

// adoptPods gives each pod of r a record of its own, as they have the volume under another inner name.
func (j *Journal) adoptPods(r Record) error {
	var errs []error
	for uid, p := range r.Pods {
		own := r.withoutPods().mounts()
		own.Staging, own.Pods = nil, map[types.UID]*SetUp{uid: p}
		at := podvolume.Key{Volume: r.Volume, Pod: volume.UniquePodName(uid)}
		if j.SetUpOf(r.Volume, uid) != nil {
			continue // What is on record of it counts.
		}
		err := j.write(at, own, partAll)
		j.enter(entry{at: at, record: own, stale: err != nil})
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (r Record) withoutPods() Record {
	r.Pods = nil
	return r
}

// adopt enters the record of a volume. The caller has the volume's turn.
func (j *Journal) adopt(r Record) error {
	j.withoutOwn(&r)
	at := podvolume.Key{Volume: r.Volume}
	err := j.write(at, r, partAll)
	j.enter(entry{at: at, record: r, stale: err != nil})
	return err
}
