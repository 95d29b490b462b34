// Package volumemanager is the node side of volumes: it makes the volumes of pods available to their containers, tears
// them down again, and recovers its exact state after a crash.
//
// The life of a pod's volumes is this:
//
//	m, err := volumemanager.New(plugins, volumemanager.Options{Store: claims, Mounter: mounter})
//	go func() { ended <- m.Run(ctx) }()   // owns every goroutine; mounts stay when it ends; its error says why it did
//	err = m.AddPod(ctx, pod)              // what is wanted
//	m.PodsComplete()                      // once, when all pods that run on this node have been added
//	err = m.WaitForAttachAndMount(ctx, pod)
//	volumes := m.GetMountedVolumesForPod(volume.GetUniquePodName(pod)) // Status and Subscribe tell more
//	...                                   // containers run
//	err = m.RemovePod(pod.UID)            // a promise: no process of the pod is alive
//	err = m.WaitForUnmount(ctx, pod)
//	err = m.Stop(ctx)                     // finishes what is being taken away, and has Run return
//
// # How it moves
//
// The pods that were added are the desired state; the results of operations are the actual state. Each change of
// either marks the volumes that it touches. A worker takes a marked volume from a queue and computes, by a pure function,
// what is to be done: tear down what is not wanted, then attach, stage and set up; last of all, unstage and detach what no
// pod uses. The worker does that itself and plans again, until nothing is to be done or the rest has to wait. Nothing
// polls: an idle manager does not wake up, and a wait returns with the change that it waited for. A slow resync plans every
// volume again, to find changes without an event. Filesystems on block devices are checked every half a minute, see
// Options.FilesystemCheckInterval: the kernel reports no event when one fails.
//
// # What is promised
//
// Unknown is not absent. The manager unmounts nothing because a claim or a volume could not be read. What it finds after
// a restart it only adopts, until PodsComplete says that every pod has been added. Only RemovePod takes volumes from a
// pod; the phase of a pod does not.
//
// Intent before effect. With records, the manager records each change before it makes it, and removes the record with the
// last trace of the change; see [Options]. A manager that starts on the directories of one that was killed knows every
// mount and attachment that may have been made. It sets up again what is wanted, tears down what is not, and touches
// nothing else. Records hold no secrets. A record that is damaged, that differs from what its plugin computes, or that
// names a path of another record is moved aside and shown in [Manager.Status]; the manager never guesses at it.
//
// As in Kubernetes, the manager sets up only volumes that a container, an init container or an ephemeral container uses.
// A volume in volumeMounts gets a filesystem, and one in volumeDevices a raw block device; the volumeMode must agree.
//
// # Words
//
// The outer name of a volume is its name in the pod's spec; the inner name is that of the PersistentVolume for a claim
// and the outer name otherwise. The unique name identifies a volume on the node: pods share volumes that are attached or
// staged; every other volume belongs to one pod alone.
package volumemanager
