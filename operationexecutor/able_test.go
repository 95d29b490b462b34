package operationexecutor_test

import (
	"context"
	"maps"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/volume"
)

// ablePlugin is a plugin that can do more: ask about many nodes at once, expand, and tell what was found.
type ablePlugin struct {
	*plugin
	name      string // empty: that of plugin
	abilities volume.Capabilities

	// answers are what it knows of attachments; what is not there is left out.
	answers map[attachment]bool
	// asked is what it was asked about last.
	asked map[attachment]bool

	expanded  func(newSize resource.Quantity) resource.Quantity // nil: to what was asked for
	oldSize   resource.Quantity                                 // of the last expansion
	noFS      bool                                              // no filesystem is to be grown
	notYet    bool                                              // NodeExpand has done nothing
	nodeGrown volume.NodeResizeOptions                          // of the last NodeExpand

	found volume.ReconstructedVolume
}

func (p *ablePlugin) GetPluginName() string {
	if p.name != "" {
		return p.name
	}
	return p.plugin.GetPluginName()
}

func (p *ablePlugin) Capabilities() volume.Capabilities {
	return p.abilities | volume.CapAttach | volume.CapDeviceMount
}

func (p *ablePlugin) NewAttacher() (volume.Attacher, error) {
	return ableAttacher{attacher{p.plugin}, p}, nil
}

// ableAttacher is an attacher that answers.
type ableAttacher struct {
	attacher
	able *ablePlugin
}

func (a ableAttacher) VolumesAreAttached(ctx context.Context, specs map[v1.UniqueVolumeName]*volume.Spec, n types.NodeName) (map[v1.UniqueVolumeName]bool, error) {
	answer := a.able.answer(specs, n)
	return answer, a.do(ctx, "VolumesAreAttached")
}

func (p *ablePlugin) BulkVerifyVolumes(ctx context.Context, byNode map[types.NodeName]map[v1.UniqueVolumeName]*volume.Spec) (map[types.NodeName]map[v1.UniqueVolumeName]bool, error) {
	answer := map[types.NodeName]map[v1.UniqueVolumeName]bool{}
	for n, specs := range byNode {
		answer[n] = p.answer(specs, n)
	}
	return answer, p.do(ctx, "BulkVerifyVolumes")
}

// answer tells also what it was not asked about.
func (p *ablePlugin) answer(specs map[v1.UniqueVolumeName]*volume.Spec, n types.NodeName) map[v1.UniqueVolumeName]bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.asked == nil {
		p.asked = map[attachment]bool{}
	}
	for name := range specs {
		p.asked[attachment{name, n}] = true
	}
	answer := map[v1.UniqueVolumeName]bool{}
	for a, attached := range p.answers {
		if a.node == n {
			answer[a.volume] = attached
		}
	}
	return answer
}

func (p *ablePlugin) questions() map[attachment]bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.asked)
}

func (p *ablePlugin) RequiresFSResize() bool { return !p.noFS }

func (p *ablePlugin) ExpandVolumeDevice(ctx context.Context, _ *volume.Spec, newSize, oldSize resource.Quantity) (resource.Quantity, error) {
	p.mu.Lock()
	p.oldSize = oldSize
	p.mu.Unlock()
	err := p.do(ctx, "ExpandVolumeDevice "+newSize.String())
	if err == nil {
		err = p.do(ctx, "ExpandVolumeDevice")
	}
	if p.expanded != nil {
		return p.expanded(newSize), err
	}
	return newSize, err
}

func (p *ablePlugin) ModifyVolume(ctx context.Context, _ *volume.Spec, parameters map[string]string) error {
	err := p.do(ctx, "ModifyVolume "+parameters["tier"])
	if err == nil {
		err = p.do(ctx, "ModifyVolume")
	}
	return err
}

func (p *ablePlugin) NodeExpand(ctx context.Context, options volume.NodeResizeOptions) (bool, error) {
	p.mu.Lock()
	p.nodeGrown = options
	p.mu.Unlock()
	return !p.notYet, p.do(ctx, "NodeExpand")
}

func (p *ablePlugin) ConstructVolumeSpec(volumeName, mountPath string) (volume.ReconstructedVolume, error) {
	p.add("ConstructVolumeSpec", volumeName, mountPath)
	return p.found, p.do(context.Background(), "ConstructVolumeSpec")
}

func (p *ablePlugin) NewBlockVolumeMapper(*volume.Spec, *v1.Pod) (volume.BlockVolumeMapper, error) {
	return ableMapper{p.plugin}, nil
}

func (p *ablePlugin) NewBlockVolumeUnmapper(string, types.UID) (volume.BlockVolumeUnmapper, error) {
	return ableMapper{p.plugin}, nil
}

func (p *ablePlugin) ConstructBlockVolumeSpec(uid types.UID, volumeName, mapPath string) (*volume.Spec, error) {
	p.add("ConstructBlockVolumeSpec", string(uid), volumeName, mapPath)
	return p.found.Spec, p.do(context.Background(), "ConstructBlockVolumeSpec")
}

// ableMapper is a custom mapper that stages.
type ableMapper struct{ *plugin }

func (ableMapper) GetGlobalMapPath(*volume.Spec) (string, error) { return "/map", nil }
func (ableMapper) GetPodDeviceMapPath() (dir, linkName string)   { return "/pod", "link" }
func (ableMapper) GetStagingPath() string                        { return "/staged" }
func (m ableMapper) SetUpDevice(ctx context.Context, _ volume.SetUpDeviceArgs) (string, error) {
	return "/staged", m.do(ctx, "SetUpDevice")
}
func (m ableMapper) MapPodDevice(ctx context.Context, _ volume.MapPodDeviceArgs) (string, error) {
	return "", m.do(ctx, "MapPodDevice")
}
