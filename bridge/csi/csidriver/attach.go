package csidriver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/volume"
)

// contextRoot is the path for an empty publish context, and the prefix of the paths for all others. It ends with a
// slash, and no path of a device does.
const contextRoot = "/csi-publish-context"

// PublishContext returns the publish context for a path that Attach or WaitForAttach returned, and false for any other
// path. Such a path is not that of a device: only the driver knows the device. The publish context thus goes through
// the controller's record of the attachment and the node's status, as every device path does, and needs no store of its
// own.
func PublishContext(devicePath string) (map[string]string, bool) {
	if devicePath == contextRoot {
		return map[string]string{}, true
	}
	query, ok := strings.CutPrefix(devicePath, contextRoot+"/")
	if !ok {
		return nil, false
	}
	values, err := url.ParseQuery(query)
	if err != nil {
		return nil, false
	}
	publish := make(map[string]string, len(values))
	for key := range values {
		publish[key] = values.Get(key)
	}
	return publish, true
}

// devicePathOf returns the path for a publish context. It is the same for the same values.
func devicePathOf(publish map[string]string) string {
	if len(publish) == 0 {
		return contextRoot
	}
	values := url.Values{}
	for key, value := range publish {
		values.Set(key, value)
	}
	return contextRoot + "/" + values.Encode()
}

// attachment is a volume on a node.
type attachment struct {
	handle string
	node   types.NodeName
}

// attacher implements volume.Attacher and volume.Detacher, and with them the staging.
type attacher struct {
	*stager
}

// NewAttacher implements [volume.AttachableVolumePlugin].
func (p *Plugin) NewAttacher() (volume.Attacher, error) { return attacher{&stager{p}}, nil }

// NewDetacher implements [volume.AttachableVolumePlugin].
func (p *Plugin) NewDetacher() (volume.Detacher, error) { return attacher{&stager{p}}, nil }

// CanAttach implements [volume.AttachableVolumePlugin] with attachRequired of the CSIDriver or, without one, with the
// driver's capabilities.
func (p *Plugin) CanAttach(spec *volume.Spec) (bool, error) {
	if p.isInline(spec) {
		return false, nil
	}
	_, err := p.sourceOf(spec)
	return err == nil && p.client.attaches(), err
}

// Attach implements [volume.Attacher]. It returns the path for the publish context, see [PublishContext]. If the volume is
// attached to the node with an earlier id of the node, the error matches [volume.ErrInUse]: Detach detaches it there.
func (a attacher) Attach(ctx context.Context, spec *volume.Spec, nodeName types.NodeName) (string, error) {
	p := a.plugin
	src, err := p.sourceOf(spec)
	if err != nil {
		return "", err
	}
	s, err := p.client.session(ctx)
	if err != nil {
		return "", err
	}
	if !s.facts.controller[csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME] {
		return devicePathOf(nil), nil // The CSIDriver requires an attachment, and the driver has no call for it.
	}
	request, err := a.request(ctx, s, src, nodeName)
	if err != nil {
		return "", err
	}
	at := attachment{src.csi.VolumeHandle, nodeName}
	before, _ := p.attached.of(at)
	if before.nodeID != "" && before.nodeID != request.GetNodeId() {
		return "", volume.Transient(fmt.Errorf("driver %q: volume %q is attached to node %q with the node's earlier id %q, or may be, and the id is %q now: detach it first: %w",
			s.facts.name, spec.Name(), nodeName, before.nodeID, request.GetNodeId(), volume.ErrInUse))
	}
	p.attached.keep(at, src.csi.ControllerPublishSecretRef, request.GetNodeId())
	answer, err := call(ctx, s, "ControllerPublishVolume", csi.NewControllerClient(s.conn).ControllerPublishVolume, request)
	if err != nil {
		if before.nodeID == "" && !isUncertain(err) {
			p.attached.forget(at) // It is not attached.
		}
		return "", err
	}
	return devicePathOf(answer.GetPublishContext()), nil
}

func (a attacher) request(ctx context.Context, s *session, src source, node types.NodeName) (*csi.ControllerPublishVolumeRequest, error) {
	known, err := a.plugin.driverNode(ctx, s.facts, node)
	if err != nil {
		return nil, err
	}
	capability, err := src.use().capability(s.facts)
	if err != nil {
		return nil, err
	}
	secrets, err := a.plugin.options.secret(ctx, src.csi.ControllerPublishSecretRef)
	if err != nil {
		return nil, err
	}
	return &csi.ControllerPublishVolumeRequest{
		VolumeId: src.csi.VolumeHandle, NodeId: known.NodeID, VolumeCapability: capability, Secrets: secrets, VolumeContext: src.csi.VolumeAttributes,
		Readonly: src.csi.ReadOnly && s.facts.controller[csi.ControllerServiceCapability_RPC_PUBLISH_READONLY],
	}, nil
}

// attachments holds what Detach needs and does not get: the reference to the secret of each attachment, and the driver's
// id of its node. Attach and the verification of attachments write it: after a restart it is complete when all have been
// verified. Until then Detach reads [Options].Volumes. The zero value is empty.
type attachments struct {
	mu   sync.Mutex
	made map[attachment]attachmentFacts
}

// attachmentFacts are the facts of one attachment.
type attachmentFacts struct {
	secret        *v1.SecretReference
	secretUnknown bool   // there may be one
	nodeID        string // empty if it is unknown
}

// keep stores the facts of an attachment. A known id of the node stays if the new one is empty.
func (a *attachments) keep(at attachment, secret *v1.SecretReference, nodeID string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.made == nil {
		a.made = map[attachment]attachmentFacts{}
	}
	f := attachmentFacts{secret: secret.DeepCopy(), nodeID: nodeID}
	if nodeID == "" {
		f.nodeID = a.made[at].nodeID
	}
	a.made[at] = f
}

// of returns the facts of an attachment, and false if none are known.
func (a *attachments) of(at attachment) (attachmentFacts, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	known, ok := a.made[at]
	return known, ok
}

// forgetEarlierID forgets the id of a node if it is not its current one and the volume is known not to be attached: Attach then
// uses the current id. A call may be attaching the volume with the current id, so that one stays.
func (a *attachments) forgetEarlierID(at attachment, current string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if f, known := a.made[at]; known && current != "" && f.nodeID != current {
		f.nodeID = ""
		a.made[at] = f
	}
}

// owners returns the nodes of the ids that are known.
func (a *attachments) owners() map[string]types.NodeName {
	a.mu.Lock()
	defer a.mu.Unlock()
	owners := map[string]types.NodeName{}
	for at, known := range a.made {
		owners[known.nodeID] = at.node
	}
	return owners
}

func (a *attachments) forget(at attachment) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.made, at)
}

// WaitForAttach implements [volume.Attacher]. It does not wait: a driver finds its device itself.
func (a attacher) WaitForAttach(_ context.Context, spec *volume.Spec, devicePath string, _ *v1.Pod) (string, error) {
	src, err := a.plugin.sourceOf(spec)
	if err != nil {
		return "", err
	}
	publish, ok := PublishContext(devicePath)
	if !ok {
		return "", volume.Transient(fmt.Errorf("driver %q: volume %q: what the driver returned when it attached the volume is not known yet (device path %q)",
			a.plugin.options.Driver, spec.Name(), devicePath))
	}
	if !a.plugin.client.stages() {
		a.plugin.node.contexts.keep(src.csi.VolumeHandle, publish)
	}
	return devicePath, nil
}

// contexts holds the publish contexts of volumes that are attached and not staged, from WaitForAttach to a Detach in
// this process: some hundred bytes for each such volume. After a restart WaitForAttach comes before the next set-up.
// The zero value is empty.
type contexts struct {
	mu       sync.Mutex
	byHandle map[string]map[string]string
}

func (c *contexts) keep(handle string, publish map[string]string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byHandle == nil {
		c.byHandle = map[string]map[string]string{}
	}
	c.byHandle[handle] = publish
}

func (c *contexts) of(handle string) (map[string]string, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	publish, ok := c.byHandle[handle]
	return publish, ok
}

func (c *contexts) forget(handle string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.byHandle, handle)
}

// Detach implements [volume.Detacher]. It uses the id of the node with which the volume was attached, if that is known:
// the node may be gone, or registered anew with another id. NOT_FOUND is no success: by the specification the volume does
// not count as detached then. A driver that attaches no volumes any more still gets the call for those that it has attached.
func (a attacher) Detach(ctx context.Context, volumeName string, nodeName types.NodeName) error {
	p, handle := a.plugin, handleOfName(volumeName)
	if err := p.checkHandle(handle); err != nil {
		return err
	}
	s, err := p.client.session(ctx)
	if err != nil {
		return err
	}
	at := attachment{handle, nodeName}
	attaches := s.facts.controller[csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME]
	if made, _ := p.attached.of(at); !attaches && made.nodeID == "" {
		return nil // No call of this process has attached it.
	}
	known, err := p.factsOf(ctx, at)
	if err != nil {
		return err
	}
	if known.nodeID == "" {
		node, err := p.driverNode(ctx, s.facts, nodeName)
		if err != nil {
			return err
		}
		known.nodeID = node.NodeID
	}
	secrets, err := p.options.secret(ctx, known.secret)
	if err != nil {
		return err
	}
	_, err = call(ctx, s, "ControllerUnpublishVolume", csi.NewControllerClient(s.conn).ControllerUnpublishVolume,
		&csi.ControllerUnpublishVolumeRequest{VolumeId: handle, NodeId: known.nodeID, Secrets: secrets})
	if err == nil {
		p.attached.forget(at)
		if nodeName == p.host.GetNodeName() {
			p.node.contexts.forget(handle)
		}
	}
	switch {
	case !attaches && isUnimplemented(err):
		return fmt.Errorf("volume %q stays attached to node %q: start a version of the driver that can detach it: %w: %w", handle, nodeName, err, volume.ErrUnsupported)
	case err != nil && known.secretUnknown:
		return fmt.Errorf("%w (%w)", err, errSecretUnknown)
	}
	return err
}

// VolumesAreAttached implements [volume.Attacher] with the driver's own list. It omits volumes that the list does not
// have.
func (a attacher) VolumesAreAttached(
	ctx context.Context, specs map[v1.UniqueVolumeName]*volume.Spec, nodeName types.NodeName,
) (map[v1.UniqueVolumeName]bool, error) {
	byNode, err := a.plugin.BulkVerifyVolumes(ctx, map[types.NodeName]map[v1.UniqueVolumeName]*volume.Spec{nodeName: specs})
	return byNode[nodeName], err
}

// BulkVerifyVolumes implements [volume.BulkVolumeVerifier] with one list of the driver for all nodes, or with a call
// for each volume if the driver has only that. It omits volumes that the driver does not report.
func (p *Plugin) BulkVerifyVolumes(
	ctx context.Context, volumesByNode map[types.NodeName]map[v1.UniqueVolumeName]*volume.Spec,
) (map[types.NodeName]map[v1.UniqueVolumeName]bool, error) {
	p.keepSecrets(volumesByNode)
	s, err := p.client.session(ctx)
	if err != nil {
		return nil, err
	}
	answer := map[types.NodeName]map[v1.UniqueVolumeName]bool{}
	nodesOf, err := s.nodesOfVolumes(ctx)
	if nodesOf == nil || err != nil {
		return answer, err
	}
	owners := p.attached.owners()
	current := map[types.NodeName]string{}
	for node := range volumesByNode {
		known, _ := p.driverNode(ctx, s.facts, node) // Its error leaves the id empty.
		current[node], owners[known.NodeID] = known.NodeID, node
	}
	for node, specs := range volumesByNode {
		answer[node] = map[v1.UniqueVolumeName]bool{}
		for name, spec := range specs {
			src, err := p.sourceOf(spec)
			if err != nil {
				continue
			}
			nodes, reported, err := nodesOf(src.csi.VolumeHandle)
			if err != nil {
				return nil, err
			}
			attached, known := p.verify(src, node, current[node], nodes)
			switch {
			case attached:
				answer[node][name] = true
			case known && reported && areOthers(nodes, node, owners):
				answer[node][name] = false
				p.attached.forgetEarlierID(attachment{src.csi.VolumeHandle, node}, current[node])
			}
		}
	}
	return answer, nil
}

// verify reports whether a volume that is on some nodes is attached to a node whose id is id, or was another one when the volume was
// attached. known is false if no id is known.
func (p *Plugin) verify(src source, node types.NodeName, id string, nodes []string) (attached, known bool) {
	at := attachment{src.csi.VolumeHandle, node}
	made, _ := p.attached.of(at)
	id = cmp.Or(made.nodeID, id)
	attached = id != "" && slices.Contains(nodes, id)
	if attached {
		p.attached.keep(at, src.csi.ControllerPublishSecretRef, id)
	}
	return attached, id != ""
}

// areOthers reports whether ids are those of other nodes than the given one. An id that is not known may be an earlier one of
// that node: a driver may start again with another id.
func areOthers(ids []string, node types.NodeName, owners map[string]types.NodeName) bool {
	for _, id := range ids {
		if owner, known := owners[id]; !known || owner == node {
			return false
		}
	}
	return true
}

// keepSecrets keeps the secrets of attachments that are verified: after a restart Detach gets them from there.
func (p *Plugin) keepSecrets(volumesByNode map[types.NodeName]map[v1.UniqueVolumeName]*volume.Spec) {
	for node, specs := range volumesByNode {
		for _, spec := range specs {
			src, err := p.sourceOf(spec)
			if err == nil {
				p.attached.keep(attachment{src.csi.VolumeHandle, node}, src.csi.ControllerPublishSecretRef, "")
			}
		}
	}
}

// nodesOfVolumes returns a function that returns the nodes of a volume, and false if the driver does not report them;
// nil for a driver that reports no nodes of any volume.
func (s *session) nodesOfVolumes(ctx context.Context) (func(handle string) ([]string, bool, error), error) {
	can := s.facts.controller
	switch {
	case can[csi.ControllerServiceCapability_RPC_LIST_VOLUMES_PUBLISHED_NODES]:
		listed, err := s.publishedNodes(ctx)
		return func(handle string) ([]string, bool, error) {
			nodes, ok := listed[handle]
			return nodes, ok, nil
		}, err
	case can[csi.ControllerServiceCapability_RPC_GET_VOLUME]:
		return func(handle string) ([]string, bool, error) { return s.nodesOfVolume(ctx, handle) }, nil
	}
	return nil, nil
}

// nodesOfVolume reads the nodes of one volume. An answer without nodes proves nothing, because a driver may omit them.
func (s *session) nodesOfVolume(ctx context.Context, handle string) ([]string, bool, error) {
	answer, err := call(ctx, s, "ControllerGetVolume", csi.NewControllerClient(s.conn).ControllerGetVolume,
		&csi.ControllerGetVolumeRequest{VolumeId: handle})
	if isCode(err, codes.NotFound) {
		return nil, false, nil
	}
	nodes := answer.GetStatus().GetPublishedNodeIds()
	return nodes, len(nodes) > 0, err
}

const (
	pageEntries = 1000
	maxPages    = 10_000
	maxRestarts = 3
)

// errEndless says that a list does not end.
var errEndless = errors.New("the driver's list does not end")

// publishedNodes returns the nodes to which each volume is published, from the driver's complete list. If a token has
// become invalid, it reads the list again from the beginning.
func (s *session) publishedNodes(ctx context.Context) (map[string][]string, error) {
	for restart := 0; ; restart++ {
		nodes, err := s.readList(ctx)
		if restart < maxRestarts && errors.Is(err, errStartAgain) {
			continue
		}
		return nodes, err
	}
}

func (s *session) readList(ctx context.Context) (map[string][]string, error) {
	nodes := map[string][]string{}
	seen := map[string]bool{}
	for token := ""; ; {
		answer, err := call(ctx, s, "ListVolumes", csi.NewControllerClient(s.conn).ListVolumes,
			&csi.ListVolumesRequest{MaxEntries: pageEntries, StartingToken: token})
		if err != nil {
			return nil, err
		}
		for _, entry := range answer.GetEntries() {
			if status := entry.GetStatus(); status != nil { // Without one the driver says nothing of nodes.
				nodes[entry.GetVolume().GetVolumeId()] = status.GetPublishedNodeIds()
			}
		}
		token = answer.GetNextToken()
		if token == "" {
			return nodes, nil
		}
		if seen[token] || len(seen) >= maxPages {
			return nil, fmt.Errorf("driver %q: %w", s.facts.name, errEndless)
		}
		seen[token] = true
	}
}

// GetVolumeLimits implements [volume.VolumePluginWithAttachLimits] with the answer of NodeGetInfo.
func (p *Plugin) GetVolumeLimits(ctx context.Context) (map[string]int64, error) {
	s, err := p.client.session(ctx)
	if err != nil || s.facts.maxVolumes == 0 {
		return map[string]int64{}, err
	}
	return map[string]int64{p.VolumeLimitKey(nil): s.facts.maxVolumes}, nil
}

// VolumeLimitKey implements [volume.VolumePluginWithAttachLimits]. All volumes count alike.
func (p *Plugin) VolumeLimitKey(*volume.Spec) string {
	return "attachable-volumes-csi-" + p.options.Driver
}
