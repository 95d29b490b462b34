// Package volumemanager is the node side of volumes: it makes the volumes of pods available to their containers and
// takes them away again, and it is not confused by a crash.
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
// The pods that were added are the desired state, what operations have done is the actual state. Whatever changes
// either marks the volumes that it touches. A worker takes a marked volume from a queue and computes, by a pure
// function, what is to be done: tear down what is not wanted, then attach, stage and set up; unstage and detach last,
// when nobody uses the volume. It does that itself, and looks again, until nothing is to be done or the rest has to wait.
// Nothing polls: an idle manager does not wake up, and a wait returns with the change that it waited for. A slow
// resync looks at every volume again, for what no event tells of. Filesystems on block devices are looked at every half a
// minute, see Options.FilesystemLook: the kernel reports no event when one fails.
//
// # What is promised
//
// Unknown is not absent. Nothing is unmounted because a claim or a volume could not be read, and what was found after
// a restart is only adopted until PodsComplete says that every pod has been added. RemovePod alone takes volumes from a
// pod; the phase of a pod does not.
//
// Intent before effect. With records, each change is on record before it is made, and the record goes with the
// last trace of it; see [Options]. A manager that starts on the directories of one that was killed knows every mount
// and attachment that may have been made: what is wanted is set up again, what is not is undone, and nothing else is
// touched. Records hold no secrets. A record that is damaged, that is not what its plugin computes, or that names a path of another
// record is moved aside, shown in [Manager.Status] and never guessed at.
//
// Only volumes that a container, an init container or an ephemeral container uses are set up, as in Kubernetes: those in
// its volumeMounts get a filesystem, those in its volumeDevices a raw block device, and the volumeMode must agree.
//
// # Words
//
// The outer name of a volume is its name in the pod's spec; the inner name is that of the PersistentVolume for a claim
// and the outer name otherwise. The unique name identifies a volume on the node: volumes that are attached or staged
// are shared by pods, every other volume belongs to one pod alone.
package volumemanager
