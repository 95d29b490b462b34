package journal

import (
	"context"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/podvolume"
)

// NewRecord returns a record on which nothing of the volume is yet.
func (j *Journal) NewRecord(name v1.UniqueVolumeName, plugin string, spec *volume.Spec) (Record, error) {
	encoded, err := encodeSpec(spec, j.options.Plugins.PublicKeys(plugin))
	return Record{Version: Version, BootID: j.bootID, Volume: name, Plugin: plugin, Spec: encoded}, err
}

// Check returns a record that was made of what was found, with the spec that it will be trusted with. It refuses what a manager
// would never have written.
func (j *Journal) Check(r Record) (Found, error) {
	spec, err := r.check(string(r.Volume), j.options.Plugins.Host())
	return Found{Record: r, Spec: spec}, err
}

// Adopt puts a volume on record that was rebuilt. What is on record of it already counts.
func (j *Journal) Adopt(ctx context.Context, r Record) error {
	release, ok := j.locks.Take(ctx.Done(), r.Volume)
	if !ok {
		return context.Cause(ctx)
	}
	defer release()
	r = merge(j.ofVolume(r.Volume).record, r).clone()
	j.withoutOwn(&r)
	at := podvolume.Key{Volume: r.Volume}
	err := j.write(at, r, partAll)
	j.enter(entry{at: at, record: r, stale: err != nil})
	return err
}
