// Package dockerdriver makes a [volume.VolumePlugin] from the socket of a Docker volume driver.
//
// It is for programs with a volume manager, for storage that has a Docker driver and no other plugin.
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
// Docker's protocol has no mount options: the plugin refuses a class or a volume that has some.
//
// # Guarantees
//
// The plugin uses a path of the driver only below one of [Options].Roots and without a symbolic link on the way.
// Something must be mounted there, unless [Options].PlainDirectories is set: if a driver has lost its mount, pods would
// write to the node's own disk. The plugin binds the directory that it has opened and checked.
//
// An answer must be JSON of at most 1 MiB. If a call was sent and has no usable answer, its error is uncertain. If it
// could not be sent, the error is transient. An error that the driver returns is final, with two exceptions: after an
// error of Mount the driver may have mounted, and after an error of Create its list may have the volume. An error of a
// read does not prove that a volume is gone: the plugin then reads the driver's list.
//
// The plugin makes the staging directory before it calls Mount, and removes it after Unmount. So a program that was
// killed repeats a call, and never omits one. A driver that counts its Mount calls and ignores their ids then counts
// one too many.
package dockerdriver
