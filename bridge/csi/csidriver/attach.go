package csidriver

import (
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

// contextRoot is the path that stands for a driver's empty answer to an attachment, and begins those of all others: paths of devices are
// clean, so that nothing ends with a slash.
const contextRoot = "/csi-publish-context"

// PublishContext returns what the driver returned when it attached the volume, of the path that Attach and WaitForAttach return, and
// false for any other path. The path is none of a device: only the driver knows that one. A driver's word for the node thus
// goes the way of every device path, through the controller's record of the attachment and the node's status, and needs no
// store of its own.
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

// devicePathOf is the path that stands for what a driver returned. It is the same for the same values.
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

// CanAttach implements [volume.AttachableVolumePlugin] by attachRequired of the CSIDriver or, without one, by what the driver has
// answered.
func (p *Plugin) CanAttach(spec *volume.Spec) (bool, error) {
	if p.isInline(spec) {
		return false, nil
	}
	_, err := p.sourceOf(spec)
	return err == nil && p.link.attaches(), err
}

// Attach implements [volume.Attacher]. It returns the path that stands for what the driver returned, see [PublishContext].
func (a attacher) Attach(ctx context.Context, spec *volume.Spec, nodeName types.NodeName) (string, error) {
	p := a.plugin
	src, err := p.sourceOf(spec)
	if err != nil {
		return "", err
	}
	s, err := p.link.session(ctx)
	if err != nil {
		return "", err
	}
	if !s.facts.controller[csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME] {
		return devicePathOf(nil), nil // As the CSIDriver asks for: it is attached by word alone.
	}
	request, err := a.request(ctx, s, src, nodeName)
	if err != nil {
		return "", err
	}
	p.attached.keep(attachment{src.csi.VolumeHandle, nodeName}, src.csi.ControllerPublishSecretRef)
	answer, err := call(ctx, s, "ControllerPublishVolume", csi.NewControllerClient(s.conn).ControllerPublishVolume, request)
	if err != nil {
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

// attachmentSecrets say with which secret each attachment was made, since Detach is not given the volume. The zero value is empty.
type attachmentSecrets struct {
	mu   sync.Mutex
	refs map[attachment]*v1.SecretReference
}

func (a *attachmentSecrets) keep(at attachment, ref *v1.SecretReference) {
	if ref == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.refs == nil {
		a.refs = map[attachment]*v1.SecretReference{}
	}
	a.refs[at] = ref.DeepCopy()
}

// of returns the secret of an attachment; nil where there is none.
func (a *attachmentSecrets) of(at attachment) *v1.SecretReference {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.refs[at]
}

func (a *attachmentSecrets) forget(at attachment) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.refs, at)
}

// WaitForAttach implements [volume.Attacher]. A driver finds its device by itself, so that there is nothing to wait for.
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
	if !a.plugin.link.stages() {
		a.plugin.node.contexts.keep(src.csi.VolumeHandle, publish)
	}
	return devicePath, nil
}

// contexts are what the driver returned for volumes that are attached and not staged, from WaitForAttach to a Detach in this process:
// some hundred bytes for each such volume that a node has had. After a restart WaitForAttach comes before the next set-up. The zero
// value is empty.
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

// Detach implements [volume.Detacher]. NOT_FOUND is no success: the specification says that the volume is then not taken for detached.
func (a attacher) Detach(ctx context.Context, volumeName string, nodeName types.NodeName) error {
	p, handle := a.plugin, handleOfName(volumeName)
	if err := p.checkHandle(handle); err != nil {
		return err
	}
	s, err := p.link.session(ctx)
	if err != nil {
		return err
	}
	if !s.facts.controller[csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME] {
		return nil
	}
	known, err := p.driverNode(ctx, s.facts, nodeName)
	if err != nil {
		return err
	}
	at := attachment{handle, nodeName}
	secrets, err := p.options.secret(ctx, p.attached.of(at))
	if err != nil {
		return err
	}
	_, err = call(ctx, s, "ControllerUnpublishVolume", csi.NewControllerClient(s.conn).ControllerUnpublishVolume,
		&csi.ControllerUnpublishVolumeRequest{VolumeId: handle, NodeId: known.NodeID, Secrets: secrets})
	if err == nil {
		p.attached.forget(at)
		p.node.contexts.forget(handle)
	}
	return err
}

// VolumesAreAttached implements [volume.Attacher] by the driver's own list. What it does not list is left out.
func (a attacher) VolumesAreAttached(
	ctx context.Context, specs map[v1.UniqueVolumeName]*volume.Spec, nodeName types.NodeName,
) (map[v1.UniqueVolumeName]bool, error) {
	byNode, err := a.plugin.BulkVerifyVolumes(ctx, map[types.NodeName]map[v1.UniqueVolumeName]*volume.Spec{nodeName: specs})
	return byNode[nodeName], err
}

// BulkVerifyVolumes implements [volume.BulkVolumeVerifier]: one list of the driver for all nodes, or a call for each volume of a driver
// that can only be asked for one. What the driver does not say is left out.
func (p *Plugin) BulkVerifyVolumes(
	ctx context.Context, volumesByNode map[types.NodeName]map[v1.UniqueVolumeName]*volume.Spec,
) (map[types.NodeName]map[v1.UniqueVolumeName]bool, error) {
	s, err := p.link.session(ctx)
	if err != nil {
		return nil, err
	}
	answer := map[types.NodeName]map[v1.UniqueVolumeName]bool{}
	nodesOf, err := s.nodesOfVolumes(ctx)
	if nodesOf == nil || err != nil {
		return answer, err
	}
	for node, specs := range volumesByNode {
		known, err := p.driverNode(ctx, s.facts, node)
		if err != nil {
			continue // Nothing is said of a node that the driver's answer cannot be compared with.
		}
		answer[node] = map[v1.UniqueVolumeName]bool{}
		for name, spec := range specs {
			src, err := p.sourceOf(spec)
			if err != nil {
				continue
			}
			nodes, said, err := nodesOf(src.csi.VolumeHandle)
			if err != nil {
				return nil, err
			}
			if said {
				answer[node][name] = slices.Contains(nodes, known.NodeID)
			}
		}
	}
	return answer, nil
}

// nodesOfVolumes returns what tells the nodes that a volume is published to, and false where the driver does not say; nil for a driver
// that says nothing of any volume.
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

// nodesOfVolume asks for one volume. An answer without nodes says nothing: a driver may leave them out.
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

// errEndless says that a list has no end.
var errEndless = errors.New("the driver's list does not end")

// publishedNodes returns the nodes that each volume is published to, from the driver's whole list. When a token has become invalid it
// is read again from the beginning.
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
			nodes[entry.GetVolume().GetVolumeId()] = entry.GetStatus().GetPublishedNodeIds()
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

// GetVolumeLimits implements [volume.VolumePluginWithAttachLimits] by what NodeGetInfo says.
func (p *Plugin) GetVolumeLimits(ctx context.Context) (map[string]int64, error) {
	s, err := p.link.session(ctx)
	if err != nil || s.facts.maxVolumes == 0 {
		return map[string]int64{}, err
	}
	return map[string]int64{p.VolumeLimitKey(nil): s.facts.maxVolumes}, nil
}

// VolumeLimitKey implements [volume.VolumePluginWithAttachLimits]. All volumes count alike.
func (p *Plugin) VolumeLimitKey(*volume.Spec) string {
	return "attachable-volumes-csi-" + p.options.Driver
}
