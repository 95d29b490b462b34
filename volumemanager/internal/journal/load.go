package journal

import (
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/internal/record"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/podvolume"
)

// Load reads all records, sorted by the names of their volumes. judge, which may be nil, returns each record in the
// form to use, or an error why it must not be used. Load moves unusable records to quarantine.
func (j *Journal) Load(judge func(Found) (Found, error)) ([]Found, []record.Damaged, error) {
	loaded, damaged, err := j.readAll(judge)
	if err != nil {
		return nil, nil, err
	}
	refuseShared(loaded)
	var moved []movedRecord
	all, own := make(map[v1.UniqueVolumeName]*loadedVolume, len(loaded)), make(map[v1.UniqueVolumeName][]loadedRecord)
	for _, l := range loaded {
		if l.err != nil {
			damaged = append(damaged, l.dir.Quarantine(l.key, l.err))
			continue
		}
		name := l.Record.Volume
		if l.own != "" {
			own[name] = append(own[name], l)
			continue
		}
		v := all[name]
		if v == nil {
			v = &loadedVolume{}
			all[name] = v
		}
		v.add(l, j.bootID)
		v.stale = v.stale || l.key != string(name) || j.isMisplaced(l.Record, l.dir)
		if l.key != string(name) {
			moved = append(moved, movedRecord{dir: l.dir, key: l.key, to: name})
		}
	}
	j.expect(len(all) + len(own))
	for name, v := range all {
		j.enter(entry{at: podvolume.Key{Volume: name}, record: v.Record, stale: v.stale})
	}
	for name, records := range own {
		v := all[name]
		if v == nil {
			v = &loadedVolume{}
			all[name] = v
		}
		v.Record = v.Record.clone()
		for _, l := range records {
			v.Found = j.enterOwn(l, v.Found)
		}
	}
	j.move(moved)
	found := make([]Found, 0, len(all))
	for _, name := range slices.Sorted(maps.Keys(all)) {
		found = append(found, all[name].Found)
	}
	return found, damaged, nil
}

// loadedVolume is a volume from one record or several. stale says that the records must be written again in the present
// form.
type loadedVolume struct {
	Found

	stale bool
}

func (v *loadedVolume) add(l loadedRecord, bootID string) {
	v.Found = Found{Record: merge(v.Record, l.Record.afterBoot(bootID)), Spec: l.Spec, Unproven: v.Unproven || l.Unproven}
}

// loadedRecord is a record that was read, or the error of its read.
type loadedRecord struct {
	Found

	dir Dir
	key string
	err error
}

// readAll reads the records of both directories, sorted by their keys, and returns the damaged ones apart.
func (j *Journal) readAll(judge func(Found) (Found, error)) (loaded []loadedRecord, damaged []record.Damaged, err error) {
	for _, dir := range slices.Compact([]Dir{j.runtime, j.state}) {
		records, bad, err := dir.Load()
		if err != nil {
			return nil, nil, err
		}
		damaged = append(damaged, bad...)
		loaded = append(loaded, j.decodeRecords(dir, records, judge)...)
	}
	return loaded, damaged, nil
}

// decodeRecords decodes records on all processors, and keeps their order.
func (j *Journal) decodeRecords(dir Dir, records []record.Record, judge func(Found) (Found, error)) []loadedRecord {
	host, decoded := j.options.Plugins.Host(), make([]loadedRecord, len(records))
	share := len(records)/runtime.GOMAXPROCS(0) + 1
	var wg sync.WaitGroup
	for from := 0; from < len(records); from += share {
		wg.Go(func() {
			for i := from; i < min(from+share, len(records)); i++ {
				v, err := decodeRecord(records[i].Key, records[i].Payload, host)
				if err == nil && judge != nil {
					v, err = judge(v)
				}
				decoded[i] = loadedRecord{Found: v, dir: dir, key: records[i].Key, err: err}
			}
		})
	}
	wg.Wait()
	return decoded
}

// isMisplaced reports whether r holds parts that belong into the other directory: an earlier manager had no such
// directory. The next change then writes both records.
func (j *Journal) isMisplaced(r Record, dir Dir) bool {
	if j.runtime == j.state {
		return false
	}
	return dir == j.runtime && r.Attachment != nil || dir == j.state && (r.Staging != nil || len(r.Pods) > 0)
}

// afterBoot returns the meaning of another boot's record. No mount has survived the boot, and device names are no
// longer valid. The directories of mounts have survived. So set-ups and stagings stay on record as uncertain: the
// teardown of a missing mount succeeds, and removes its directory.
func (r Record) afterBoot(bootID string) Record {
	if r.BootID == bootID {
		return r
	}
	r.BootID = bootID
	if r.Attachment != nil {
		r.Attachment = &Attachment{Node: r.Attachment.Node}
	}
	if r.Staging != nil {
		r.Staging = &Staging{Path: r.Staging.Path, SELinux: r.Staging.SELinux}
	}
	for uid, p := range r.Pods {
		next := *p
		next.Mount, next.Settled = Mount{}, nil
		r.Pods[uid] = &next
	}
	return r
}

// merge joins the record of a volume's mounts and that of its attachment. If both have a part, that of a is used.
func merge(a, b Record) Record {
	if a.Volume == "" {
		return b
	}
	if a.Attachment == nil {
		a.Attachment = b.Attachment
	}
	if a.Staging == nil {
		a.Staging = b.Staging
	}
	pods := maps.Clone(b.Pods)
	if pods == nil {
		return a
	}
	maps.Copy(pods, a.Pods)
	a.Pods = pods
	return a
}

// refuseShared refuses every record with a path that the record of another volume also has: at least one of them is
// wrong, and it is unknown which.
func refuseShared(loaded []loadedRecord) {
	holders := make(map[string]int, len(loaded)) // the first record with each path
	for i, l := range loaded {
		if l.err != nil {
			continue
		}
		for _, path := range l.ownPaths() {
			first, ok := holders[path]
			if !ok {
				holders[path] = i
				continue
			}
			if other := loaded[first].Record.Volume; other != l.Record.Volume {
				loaded[i].err = sharedPath(l.Record.Volume, path, other)
				if !errors.Is(loaded[first].err, errSharedPath) {
					loaded[first].err = sharedPath(other, path, l.Record.Volume)
				}
			}
		}
	}
}

// errSharedPath matches the error of a record with a path of another record.
var errSharedPath = fmt.Errorf("two volumes cannot be at one path: %w", volume.ErrInvalid)

func sharedPath(name v1.UniqueVolumeName, path string, other v1.UniqueVolumeName) error {
	return fmt.Errorf("the record of volume %q names path %q, which the record of volume %q names too; both are set aside: %w", name, path, other, errSharedPath)
}

// ownPaths returns the paths of a record that no other volume can have.
func (v Found) ownPaths() []string {
	var paths []string
	if v.Record.Staging != nil {
		paths = append(paths, v.Record.Staging.Path)
	}
	for _, p := range v.Record.Pods {
		if !UsedWhereItIs(v.Spec, p.Path) {
			paths = append(paths, p.Path)
		}
	}
	return paths
}

// movedRecord is a record whose key is no longer its volume's name.
type movedRecord struct {
	dir Dir
	key string
	to  v1.UniqueVolumeName
}

// move writes the records of volumes under their names, and then removes those under other keys. If a record cannot be
// written, it stays, and the next start moves it.
func (j *Journal) move(records []movedRecord) {
	for _, r := range records {
		err := j.rewrite(podvolume.Key{Volume: r.to})
		if err == nil {
			err = r.dir.Remove(r.key)
		}
		if err != nil {
			j.options.Logger.Warn("a record of an older version stays under its old name", "record", r.key, "volume", r.to, "error", err)
		}
	}
}
