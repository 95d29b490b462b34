package operationexecutor_test

import (
	"context"
	"maps"
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/volume"
)

// clusterState is an attacher updater of many nodes. It knows each attachment as "attached" or "uncertain", and keeps in
// the history what it is told.
type clusterState struct {
	*history
	mu          sync.Mutex
	attachments map[attachment]string
}

type attachment struct {
	volume v1.UniqueVolumeName
	node   types.NodeName
}

func newClusterState(h *history) *clusterState {
	return &clusterState{history: h, attachments: map[attachment]string{}}
}

func (s *clusterState) set(name v1.UniqueVolumeName, n types.NodeName, state string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.attachments[attachment{name, n}] = state
	if state == "" {
		delete(s.attachments, attachment{name, n})
	}
}

func (s *clusterState) get(name v1.UniqueVolumeName, n types.NodeName) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.attachments[attachment{name, n}]
}

func (s *clusterState) MarkVolumeAsAttached(name v1.UniqueVolumeName, _ *volume.Spec, n types.NodeName, _ string) error {
	s.add("attached", string(n))
	s.set(name, n, "attached")
	return nil
}

func (s *clusterState) MarkVolumeAsUncertain(name v1.UniqueVolumeName, _ *volume.Spec, n types.NodeName) error {
	s.add("uncertain", string(n))
	s.set(name, n, "uncertain")
	return nil
}

func (s *clusterState) MarkVolumeAsDetached(name v1.UniqueVolumeName, n types.NodeName) {
	s.add("detached", string(n))
	s.set(name, n, "")
}

func (s *clusterState) RemoveVolumeFromReportAsAttached(_ v1.UniqueVolumeName, n types.NodeName) error {
	s.add("withdrawn", string(n))
	return nil
}

func (s *clusterState) AddVolumeToReportAsAttached(_ v1.UniqueVolumeName, n types.NodeName) {
	s.add("reported", string(n))
}

func (s *clusterState) NodesOfVolume(name v1.UniqueVolumeName) []types.NodeName {
	s.mu.Lock()
	defer s.mu.Unlock()
	var nodes []types.NodeName
	for a := range maps.Keys(s.attachments) {
		if a.volume == name {
			nodes = append(nodes, a.node)
		}
	}
	return slices.Sorted(slices.Values(nodes))
}

// reporter is an AttachmentReporter.
type reporter struct {
	*history
	err error
}

func (r *reporter) ReportAttached(_ context.Context, n types.NodeName) error {
	r.add("ReportAttached", string(n))
	return r.err
}
