package volumemanager

import (
	"slices"

	"github.com/volumekit/volumekit/volume"
)

// few is how many pods are gone through one after the other; of more there is an index. Most volumes have one pod.
const few = 8

// places tells the place of each pod in a list.
type places struct {
	pods  []volume.UniquePodName
	index map[volume.UniquePodName]int
}

func (p *places) find(pod volume.UniquePodName) (at int, ok bool) {
	if p.index != nil {
		at, ok = p.index[pod]
		return at, ok
	}
	at = slices.Index(p.pods, pod)
	return at, at >= 0
}

// cleared returns an empty list that uses the memory of p again.
func (p *places) cleared() places {
	clear(p.pods)
	return places{pods: p.pods[:0]}
}

// add adds a pod that is not there.
func (p *places) add(pod volume.UniquePodName) {
	p.pods = append(p.pods, pod)
	if len(p.pods) <= few {
		return
	}
	if p.index == nil {
		p.index = make(map[volume.UniquePodName]int)
		for i, pod := range p.pods {
			p.index[pod] = i
		}
	}
	p.index[pod] = len(p.pods) - 1
}
