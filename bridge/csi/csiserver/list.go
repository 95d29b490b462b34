package csiserver

import (
	"context"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/volume"
)

// tokenPrefix begins the tokens of lists. What follows is the id of the last entry of the page before, which may have been
// deleted since.
const tokenPrefix = "after:"

// maxPage is how many entries are in a page at most, whatever is asked for.
const maxPage = 500

// pageOf returns after which id a page begins, and how large it is at most.
func pageOf(r interface {
	GetMaxEntries() int32
	GetStartingToken() string
}) (after string, size int, err error) {
	after, ok := strings.CutPrefix(r.GetStartingToken(), tokenPrefix)
	switch {
	case r.GetMaxEntries() < 0:
		return "", 0, status.Error(codes.InvalidArgument, "max_entries is negative")
	case r.GetStartingToken() != "" && !ok:
		return "", 0, status.Errorf(codes.Aborted, "starting_token %s is not one of this driver: begin anew", volume.Quote(r.GetStartingToken()))
	case r.GetMaxEntries() == 0:
		return after, maxPage, nil
	}
	return after, min(int(r.GetMaxEntries()), maxPage), nil
}

// ListVolumes returns the volumes that were made, in the order of their ids, and where they are attached.
func (c *controller) ListVolumes(ctx context.Context, r *csi.ListVolumesRequest) (*csi.ListVolumesResponse, error) {
	if !c.makes() {
		return nil, unimplemented("ListVolumes")
	}
	after, size, err := pageOf(r)
	if err != nil {
		return nil, err
	}
	all := c.state.volumes.Where(func(v volumeRecord) bool { return v.Step == made && v.ID > after })
	slices.SortFunc(all, func(a, b volumeRecord) int { return strings.Compare(a.ID, b.ID) })
	response := &csi.ListVolumesResponse{}
	if len(all) > size {
		all = all[:size]
		response.NextToken = tokenPrefix + all[size-1].ID
	}
	nodes, err := c.attachments.attachedNodes(ctx, all)
	if err != nil {
		return nil, err
	}
	for _, v := range all {
		described, err := c.volumes.volume(v)
		if err != nil {
			return nil, err
		}
		response.Entries = append(response.Entries, &csi.ListVolumesResponse_Entry{
			Volume: described, Status: &csi.ListVolumesResponse_VolumeStatus{PublishedNodeIds: nodes[v.ID]},
		})
	}
	return response, nil
}

// attachedNodes returns where volumes are attached, by id: what is on record, less what the plugin says is not so. A volume of
// which the plugin says nothing counts as attached.
func (s *attachments) attachedNodes(ctx context.Context, volumes []volumeRecord) (map[string][]string, error) {
	if !s.attachesByController() {
		return nil, nil
	}
	plugin, ok := s.plugin.(volume.AttachableVolumePlugin)
	if !ok {
		return nil, nil
	}
	byNode := map[types.NodeName]map[v1.UniqueVolumeName]*volume.Spec{}
	ids := map[v1.UniqueVolumeName]string{}
	for _, v := range volumes {
		for _, a := range s.state.attachmentsOf(v.ID) {
			spec, err := s.specOf(a.ID, a.Origin, use{capability: a.Capability, readOnly: a.ReadOnly})
			if err != nil {
				return nil, err
			}
			name, err := volume.GetUniqueVolumeNameFromSpec(plugin, spec)
			if err != nil {
				return nil, err
			}
			if byNode[a.Node] == nil {
				byNode[a.Node] = map[v1.UniqueVolumeName]*volume.Spec{}
			}
			byNode[a.Node][name], ids[name] = spec, v.ID
		}
	}
	nodes := map[string][]string{}
	for node, specs := range byNode {
		for _, name := range s.attachedTo(ctx, plugin, node, specs) {
			nodes[ids[name]] = append(nodes[ids[name]], string(node))
		}
	}
	for _, each := range nodes {
		slices.Sort(each)
	}
	return nodes, nil
}

// attachedTo returns those of specs that are attached to the node, or may be.
func (s *attachments) attachedTo(
	ctx context.Context, plugin volume.AttachableVolumePlugin, node types.NodeName, specs map[v1.UniqueVolumeName]*volume.Spec,
) []v1.UniqueVolumeName {
	var answer map[v1.UniqueVolumeName]bool
	attacher, err := plugin.NewAttacher()
	if err == nil {
		answer, err = attacher.VolumesAreAttached(ctx, specs, node)
	}
	if err != nil {
		s.logger.Warn("what is attached is told from the records", "node", node, "error", err)
		answer = nil
	}
	var attached []v1.UniqueVolumeName
	for name := range specs {
		if is, told := answer[name]; is || !told {
			attached = append(attached, name)
		}
	}
	return attached
}
