package main

import (
	"context"
	"fmt"
	"path/filepath"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/bridge/csi/csidriver"
	"github.com/volumekit/volumekit/bridge/csi/csiserver"
	"github.com/volumekit/volumekit/controller/snapshot"
	"github.com/volumekit/volumekit/plugins/loopblock"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// csiObject says what a node cannot ask the controller service: volumes are attached. Here it is part of the program. An
// orchestrator whose users bring drivers has such objects in its store (csidriver.StoredObjects). The demo stores it for the
// schedulers: they look at how much can still be made.
var csiObject = &storagev1.CSIDriver{
	ObjectMeta: metav1.ObjectMeta{Name: loopblock.Driver},
	Spec:       storagev1.CSIDriverSpec{AttachRequired: new(true), StorageCapacity: new(true)},
}

// controllerService is the part of the CSI driver that runs beside the controllers of the leader. Its records lie beside the images,
// where the next leader finds them. They are locked: the next leader works when the one before it, and all its calls, have ended.
func controllerService(o options) csiserver.Options {
	return csiserver.Options{
		Services: csiserver.ControllerOnly, StateDir: filepath.Join(o.shared, "driver"),
		Topology: map[string]string{segmentLabel: diskSegment},
	}
}

// nodeService is the part of the CSI driver that runs beside the agent of a node, and mounts in the node's namespace.
func nodeService(o options) csiserver.Options {
	return csiserver.Options{
		Services: csiserver.NodeOnly,
		StateDir: filepath.Join(o.dir, "driver", "state"), RuntimeDir: filepath.Join(runDir(o), "driver"),
		Topology: map[string]string{segmentLabel: o.segment},
	}
}

// withPlugin calls work with the plugin by which a process has its volumes: disks itself or, with -csi, a plugin that calls disks
// through a socket. The process serves that socket itself while work runs.
func withPlugin(
	ctx context.Context, o options, d *disks, service csiserver.Options, work func(context.Context, volume.VolumePlugin) error,
) error {
	if !o.csi {
		return work(ctx, d)
	}
	service.Socket, service.RootDir, service.NodeName = socketIn(o.dir), filepath.Join(o.dir, "driver"), d.node
	server, err := csiserver.New(d, service)
	if err != nil {
		return err
	}
	uses := csidriver.Node
	if service.Services == csiserver.ControllerOnly {
		uses = csidriver.Controller
	}
	driver, err := csidriver.New(csidriver.Options{
		Socket: service.Socket, Driver: loopblock.Driver, Services: uses, Object: csiObject, Nodes: csidriver.StoredNodes(d.holders),
		SnapshotSecrets: secrets{store: d.holders, plugin: loopblock.Name},
	})
	if err != nil {
		return err
	}
	defer func() { _ = driver.Close() }() // Nothing of it is kept.
	return runAll(ctx, server.Run, func(ctx context.Context) error {
		if err := persist(ctx, func() error { return driver.Connect(ctx) }); err != nil {
			return err
		}
		if uses == csidriver.Node { // The controllers read there what the driver calls this node.
			if err := persist(ctx, func() error { return driver.Register(ctx, d.holders, d.node) }); err != nil {
				return err
			}
		}
		return work(ctx, driver.Plugin())
	})
}

// socketIn is the socket of a process with that directory.
func socketIn(dir string) string { return filepath.Join(dir, "csi.sock") }

// maxSocket is how long the path of a socket may be that csiserver makes.
const maxSocket = 101

// checkDemoDir refuses a directory in which the sockets of a demo would have too long paths.
func checkDemoDir(dir string) error {
	longest := socketIn(filepath.Join(dir, names("controller", controllerCount)[0]))
	if len(longest) <= maxSocket {
		return nil
	}
	return fmt.Errorf("a socket's path has at most %d bytes, and %q has %d: give a shorter -dir: %w", maxSocket, longest, len(longest), volume.ErrInvalid)
}

// secrets finds the secrets with which a driver deletes snapshots: annotations of their contents name them. That of loop-block needs none.
type secrets struct {
	store  store.Store
	plugin string
}

// SnapshotSecret implements csidriver.SnapshotSecrets.
func (s secrets) SnapshotSecret(ctx context.Context, call csidriver.SnapshotCall) (*v1.SecretReference, error) {
	switch call.Method {
	case "DeleteSnapshot":
		return snapshot.DeletionSecret(ctx, s.store, s.plugin, call.Handle)
	case "DeleteVolumeGroupSnapshot":
		return snapshot.GroupDeletionSecret(ctx, s.store, s.plugin, call.Handle)
	}
	return nil, nil
}
