package volumetest

import (
	"errors"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/volume"
)

// copyOf says what is to be made of a volume.
func (e *env) copyOf(source *v1.PersistentVolume) volume.VolumeOptions {
	options := e.volumeOptions()
	options.PVC = options.PVC.DeepCopy()
	options.PVC.Spec.DataSource = &v1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: source.Name}
	options.Source = source
	return options
}

// pair is a volume and its copy, each set up for a pod of its own.
type pair struct {
	e                *env
	source           *v1.PersistentVolume
	options          volume.VolumeOptions // of the copy
	copied           *v1.PersistentVolume
	ofSource, ofCopy *staged
	first, second    *podVolume // of the source and of the copy
}

func cloneIsACopy(e *env) {
	p := &pair{e: e, source: e.provision(e.volumeOptions())}
	p.fill()
	p.clone()
	p.second.expect("file", "of the source")
	p.second.write("file", "of the copy")
	p.first.expect("file", "of the source")
	p.first.write("later", "of the source")
	p.second.expectEmptyOf("later")
	e.crash()
	if again, err := e.tryProvision(p.options); err != nil || e.volumeNameOf(again) != e.volumeNameOf(p.copied) {
		e.broken("the second Provision of the copy returned %v", err)
	}
	p.second.expect("file", "of the copy")
	p.loseSource()
	p.second.expect("file", "of the copy")
	p.second.tearDown()
	p.ofCopy.release()
}

// fill sets the source up and writes to it.
func (p *pair) fill() {
	p.e.t.Helper()
	spec := volume.NewSpecFromPersistentVolume(p.source, false)
	_, err := p.e.registry.FindCloneablePluginBySpec(spec)
	p.e.must("CanClone of a volume that the plugin has made", err)
	p.ofSource = p.e.ready(spec)
	p.first = p.ofSource.forPod().setUp()
	p.first.write("file", "of the source")
}

// clone makes the copy, of a source in use where the plugin can, and sets both up.
func (p *pair) clone() {
	p.e.t.Helper()
	p.options = p.e.copyOf(p.source)
	copied, err := p.e.tryProvision(p.options)
	inUse := errors.Is(err, volume.ErrInUse)
	if inUse {
		p.first.expect("file", "of the source")
		p.first.tearDown()
		p.ofSource.release()
		copied, err = p.e.tryProvision(p.options)
	}
	p.e.must("Provision of a copy", err)
	p.copied = copied
	spec := volume.NewSpecFromPersistentVolume(copied, false)
	p.e.later(func() { p.e.tryDelete(spec) })
	has, least := copied.Spec.Capacity[v1.ResourceStorage], p.source.Spec.Capacity[v1.ResourceStorage]
	if has.Cmp(least) < 0 {
		p.e.broken("the copy has %s and its source %s", has.String(), least.String())
	}
	if inUse {
		p.ofSource = p.e.ready(volume.NewSpecFromPersistentVolume(p.source, false))
		p.first = p.ofSource.forPod().setUp()
	}
	p.ofCopy = p.e.ready(spec)
	p.second = p.ofCopy.forPod().setUp()
}

// loseSource ends the source, which its copy outlives.
func (p *pair) loseSource() {
	p.e.t.Helper()
	p.first.tearDown()
	p.ofSource.release()
	p.e.tryDelete(volume.NewSpecFromPersistentVolume(p.source, false))
}

func unknownSource(e *env) {
	options := e.volumeOptions()
	options.PVC = options.PVC.DeepCopy()
	group := "volumetest.example.com"
	options.PVC.Spec.DataSource = &v1.TypedLocalObjectReference{APIGroup: &group, Kind: "Unknown", Name: "nothing"}
	if pv, err := e.tryProvision(options); err == nil {
		e.tryDelete(volume.NewSpecFromPersistentVolume(pv, false))
		e.broken("a volume was made for a claim whose data source does not exist")
	}
}
