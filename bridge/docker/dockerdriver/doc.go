// Package dockerdriver makes a [volume.VolumePlugin] of the socket of a Docker volume driver.
//
// It is for programs with a volume manager whose storage has a driver for Docker and nothing else.
//
//	plugin, err := dockerdriver.New(dockerdriver.Options{
//		Name:   "example.com/images",
//		Socket: "/run/docker/plugins/images.sock",
//		Roots:  []string{"/var/lib/images"},
//	})
//
// # A volume
//
// A PersistentVolume names the plugin and the volume by its csi source: driver is the plugin's name in the order of CSI
// (images.example.com), and volumeHandle is the name of the volume in the driver.
//
// # A life
//
//	Provision      Create, with the parameters of the class as options
//	MountDevice    Mount, with one id for this node; what the driver returns is bound at {root}/plugins/NAME/mounts/HANDLE
//	SetUp          the content is given to the pod's fsGroup; a bind of it for the pod, read-only where that is asked for
//	TearDown       the pod's bind is taken off
//	UnmountDevice  the bind is taken off; Unmount, with the same id
//	Delete         Remove
//
// Docker's protocol has no mount options: a class or a volume that has some is refused.
//
// # Guarantees
//
// A path that the driver returns is used only below one of [Options].Roots, without a link on the way, and, unless
// [Options].PlainDirectories is set, only if something is mounted there: a driver that has lost its mount would have pods write to the
// node's own disk. What is bound is what was opened.
//
// An answer has at most 1 MiB and must be JSON. A call that was sent and has no usable answer is uncertain, and one that could not be sent is
// transient. An error that the driver returns is final, but for one to Mount, after which a driver may have mounted, and one to Create
// of a volume that is on the driver's list then. A driver that refuses a question has not said that a volume is gone: its list does.
//
// The staging directory is there before Mount is called, and goes after Unmount. A killed program therefore repeats a call, and
// never leaves one out. A driver that counts its Mount calls, and does not look at their ids, then counts one too many.
package dockerdriver
