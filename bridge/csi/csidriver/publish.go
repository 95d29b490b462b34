package csidriver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volume/ownership"
)

// mounter publishes a volume for one pod.
type mounter struct {
	podVolume

	src source
	pod *v1.Pod
}

// podVolume is a volume at the path of one pod.
type podVolume struct {
	volume.Dir

	plugin *Plugin
}

// NewMounter implements [volume.VolumePlugin].
func (p *Plugin) NewMounter(spec *volume.Spec, pod *v1.Pod) (volume.Mounter, error) {
	src, err := p.sourceFor(spec, pod)
	if err != nil {
		return nil, err
	}
	if src.block {
		return nil, fmt.Errorf("volume %q has volumeMode Block: it is mapped: %w", spec.Name(), volume.ErrUnsupported)
	}
	path, err := p.node.podPath(spec.Name(), pod.UID)
	if err != nil {
		return nil, err
	}
	return &mounter{podVolume: podVolume{Dir: volume.Dir{Path: path}, plugin: p}, src: src, pod: pod}, nil
}

func (p *Plugin) sourceFor(spec *volume.Spec, pod *v1.Pod) (source, error) {
	if p.isInline(spec) {
		return p.inlineOf(spec, pod)
	}
	return p.sourceOf(spec)
}

// NewUnmounter implements [volume.VolumePlugin].
func (p *Plugin) NewUnmounter(name string, podUID types.UID) (volume.Unmounter, error) {
	path, err := p.node.podPath(name, podUID)
	if err != nil {
		return nil, err
	}
	return &podVolume{Dir: volume.Dir{Path: path}, plugin: p}, nil
}

func (n *nodeService) podPath(name string, podUID types.UID) (string, error) {
	for _, element := range []string{name, string(podUID)} {
		if err := volume.CheckPathElement(element); err != nil {
			return "", err
		}
	}
	return n.host.GetPodVolumeDir(podUID, n.name, name), nil
}

// GetAttributes implements [volume.Mounter].
func (m *mounter) GetAttributes() volume.Attributes {
	managed := !m.src.readOnly && m.plugin.node.ownsContent(m.src)
	return volume.Attributes{ReadOnly: m.src.readOnly, Managed: managed, SupportsSELinux: managed}
}

// SetUp implements [volume.Mounter].
func (m *mounter) SetUp(ctx context.Context, args volume.MounterArgs) error {
	return m.SetUpAt(ctx, m.GetPath(), args)
}

// SetUpAt implements [volume.Mounter].
func (m *mounter) SetUpAt(ctx context.Context, dir string, args volume.MounterArgs) error {
	n := &m.plugin.node
	if err := ownership.CheckGroup(args.FsGroup); err != nil {
		return n.mountPoints.notCalled(dir, fmt.Errorf("%w: %w", volume.ErrInvalid, err))
	}
	err := n.publish(ctx, publication{src: m.src, pod: m.pod, path: dir, group: args.FsGroup, label: args.SELinuxLabel})
	if err != nil {
		return err
	}
	return n.applyGroup(ctx, m.src, dir, args, m.pod)
}

// publication is one NodePublishVolume for one pod.
type publication struct {
	src   source
	pod   *v1.Pod // nil for a block device
	path  string
	group *int64
	label string
}

// publish records the volume and has the driver publish it. If the driver reports success and nothing is mounted, that
// is an error: the pod would write into the directory below.
func (n *nodeService) publish(ctx context.Context, pub publication) error {
	s, err := n.client.session(ctx)
	if err != nil {
		return err
	}
	request, err := n.publishRequest(ctx, s.facts, pub)
	if err != nil {
		return n.mountPoints.notCalled(pub.path, err)
	}
	staging, err := n.stagingOf(pub.src)
	if err != nil {
		return n.mountPoints.notCalled(pub.path, err)
	}
	existed, err := n.mountPoints.records.write(record{
		Path: pub.path, VolumeID: pub.src.csi.VolumeHandle, Kind: published,
		Staging: staging, PublishContext: request.GetPublishContext(),
	})
	if err != nil {
		return fmt.Errorf("publishing volume %q: %w", pub.src.pv.Name, err)
	}
	err = os.MkdirAll(filepath.Dir(pub.path), 0o750)
	if err == nil {
		_, err = call(ctx, s, "NodePublishVolume", csi.NewNodeClient(s.conn).NodePublishVolume, request)
	}
	if err != nil {
		return n.mountPoints.undoFailed(ctx, pub.path, existed, err)
	}
	return n.checkPublished(ctx, pub)
}

// stagingOf returns where a volume is staged; empty if it is not.
func (n *nodeService) stagingOf(src source) (string, error) {
	if src.inline {
		return "", nil
	}
	stages, err := n.stages(src)
	if err != nil || !stages {
		return "", err
	}
	return n.stagingPath(src), nil
}

func (n *nodeService) checkPublished(ctx context.Context, pub publication) error {
	isThere, err := n.mountPoints.isMounted(ctx, pub.path)
	if err == nil && !isThere && pub.src.block {
		isThere, err = isDevice(pub.path) // A driver may create it there instead of a mount.
	}
	if err != nil {
		return volume.Uncertain(err)
	}
	if !isThere {
		return volume.Uncertain(fmt.Errorf("driver %q: volume %q is published, and nothing is mounted at %q: %w",
			n.options.Driver, pub.src.csi.VolumeHandle, pub.path, ErrContradiction))
	}
	if pub.src.readOnly && !pub.src.block {
		return n.checkReadOnly(ctx, pub)
	}
	return nil
}

// checkReadOnly returns an error unless the mount, or its whole filesystem, is read-only in the kernel.
func (n *nodeService) checkReadOnly(ctx context.Context, pub publication) error {
	there, err := n.mountPoints.mounter.Lookup(ctx, pub.path)
	if err != nil {
		return volume.Uncertain(err)
	}
	if !slices.Contains(there.Options, "ro") && !slices.Contains(there.SuperOptions, "ro") {
		return volume.Uncertain(fmt.Errorf("driver %q: volume %q is published read-only, and %q can be written to: %w",
			n.options.Driver, pub.src.csi.VolumeHandle, pub.path, ErrContradiction))
	}
	return nil
}

func isDevice(path string) (bool, error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && info.Mode()&fs.ModeDevice != 0, err
}

func (n *nodeService) publishRequest(ctx context.Context, f facts, pub publication) (*csi.NodePublishVolumeRequest, error) {
	capability, err := n.useOf(f, pub.src, pub.group, pub.label).capability(f)
	if err != nil {
		return nil, err
	}
	request := &csi.NodePublishVolumeRequest{
		VolumeId: pub.src.csi.VolumeHandle, TargetPath: pub.path, VolumeCapability: capability, Readonly: pub.src.readOnly,
		VolumeContext: pub.src.csi.VolumeAttributes,
	}
	switch {
	case pub.src.inline: // The driver creates it now.
	case n.client.stages():
		err = n.addStaging(pub.src, request)
	default:
		err = n.addAttachment(pub, request)
	}
	if err != nil {
		return nil, err
	}
	if request.Secrets, err = n.options.secret(ctx, pub.src.csi.NodePublishSecretRef); err != nil {
		return nil, err
	}
	return request, n.addPod(ctx, pub, request)
}

// addStaging adds the staging path and the publish context from the record.
func (n *nodeService) addStaging(src source, request *csi.NodePublishVolumeRequest) error {
	path := n.stagingPath(src)
	rec, known, err := n.mountPoints.records.read(path)
	if err != nil {
		return err
	}
	if !known || n.mountPoints.records.outlived(rec) {
		return fmt.Errorf("volume %q: nothing is on record at %q in this boot: stage it first: %w", src.pv.Name, path, ErrNotStaged)
	}
	request.StagingTargetPath, request.PublishContext = path, rec.PublishContext
	return nil
}

// addAttachment adds the publish context of a volume that is not staged: from the last WaitForAttach, or else from the
// record of an earlier set-up in this boot. In another boot the driver may have attached the volume as another device.
func (n *nodeService) addAttachment(pub publication, request *csi.NodePublishVolumeRequest) error {
	if !n.client.attaches() {
		return nil
	}
	if publish, ok := n.contexts.of(pub.src.csi.VolumeHandle); ok {
		request.PublishContext = publish
		return nil
	}
	rec, known, err := n.mountPoints.records.read(pub.path)
	if err == nil && (!known || n.mountPoints.records.outlived(rec)) {
		err = fmt.Errorf("volume %q: what the driver returned when it was attached is not known: wait for it first: %w", pub.src.pv.Name, ErrNotAttached)
	}
	request.PublishContext = rec.PublishContext
	return err
}

// ownsContent reports whether the plugin changes the group of the content, by fsGroupPolicy of the CSIDriver. Without a
// policy it does so for a filesystem that only one node has.
func (n *nodeService) ownsContent(src source) bool {
	policy := storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy
	if set := n.client.spec().FSGroupPolicy; set != nil {
		policy = *set
	}
	if policy != storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy {
		return policy == storagev1.FileFSGroupPolicy
	}
	return src.csi.FSType != "" && len(src.pv.Spec.AccessModes) > 0 && volume.ContainsAllAccessModes(
		[]v1.PersistentVolumeAccessMode{v1.ReadWriteOnce, v1.ReadWriteOncePod}, src.pv.Spec.AccessModes)
}

// applyGroup gives the content to the group, unless the driver did or the policy excludes the volume.
func (n *nodeService) applyGroup(ctx context.Context, src source, dir string, args volume.MounterArgs, pod *v1.Pod) error {
	if args.FsGroup == nil || src.readOnly || args.IsRemount || !n.ownsContent(src) ||
		n.client.known().node[csi.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP] {
		return nil
	}
	_, err := ownership.Apply(ctx, dir, ownership.Options{Group: args.FsGroup, Policy: args.FSGroupChangePolicy, Pod: pod})
	if err != nil {
		return volume.Uncertain(fmt.Errorf("volume %q: %w", src.pv.Name, err)) // It is mounted.
	}
	return nil
}

// TearDown implements [volume.Unmounter].
func (u *podVolume) TearDown(ctx context.Context) error { return u.TearDownAt(ctx, u.GetPath()) }

// TearDownAt implements [volume.Unmounter].
func (u *podVolume) TearDownAt(ctx context.Context, dir string) error {
	return u.plugin.node.tearDown(ctx, dir, published)
}
