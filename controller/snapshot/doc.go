// Package snapshot makes snapshots of volumes: it serves the VolumeSnapshot API of Kubernetes with the plugins of this library. It is a
// module of its own, for those who want the types of that API.
//
//	kinds, err := store.NewKindTable(snapshot.Kinds()...)
//	s := store.NewMemory(store.MemoryOptions{Kinds: kinds})
//	snapshots := snapshot.New(plugins, s, snapshot.Options{})
//	claims := persistentvolume.New(plugins, s, persistentvolume.Options{Snapshots: snapshots})
//	go snapshots.Run(ctx)
//
// # The life of a snapshot
//
//  1. A VolumeSnapshot names a claim. It gets its finalizers and, if it names no class, the default class of the volume's driver.
//  2. The claim gets a finalizer: it stays while its volume is read.
//  3. A VolumeSnapshotContent is created, under a name made of the snapshot's UID. The snapshot names it in its status.
//  4. The content is marked as one for which a plugin was called. Then the plugin is called, with a name made of the same UID.
//  5. The content's status gets the handle, then the mark goes. The snapshot's status follows the content's.
//  6. When the snapshot is deleted, so is its content, if its policy is Delete, and the plugin deletes the snapshot before its content
//     goes. With the policy Retain the content stays.
//
// A content that was made by hand names the handle of a snapshot that exists. A VolumeSnapshot that names it is bound to it. A
// VolumeGroupSnapshot selects claims by labels. Its volumes are snapshotted at one moment, and each of its snapshots gets a
// VolumeSnapshot and a VolumeSnapshotContent.
//
// # Guarantees
//
//   - The process may be killed between any two steps. What it wrote says what the next one has to do, and a call is repeated under
//     the same name.
//   - The plugin deletes a snapshot only for a content that names its handle, whose policy is Delete, and whose VolumeSnapshot is gone
//     or being deleted. The store is read for that, not a cache.
//   - A content for which a plugin may have made a snapshot stays until it is known which.
//   - A VolumeSnapshot stays while a volume that is restored from it may have been begun.
//
// docs/snapshots.md has the behaviour in tables.
package snapshot
