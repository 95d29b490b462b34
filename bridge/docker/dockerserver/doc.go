// Package dockerserver serves a [volume.VolumePlugin] to Docker, as a volume driver on a unix socket.
//
// It is for whoever has a plugin and users of Docker, on one machine. The plugin may be of any kind: one that provisions makes a
// volume for each docker volume create; for any other, the program says by [Options].Source what a new volume is.
//
//	server, err := dockerserver.New(loopblock.New(loopblock.Options{}), dockerserver.Options{
//		Socket:     "/run/docker/plugins/loop-block.sock",
//		RootDir:    "/var/lib/loop-block",
//		StateDir:   "/var/lib/loop-block/state",
//		RuntimeDir: "/run/loop-block",
//		NodeName:   "node-1",
//	})
//	err = server.Run(ctx)
//
// Then docker volume create -d loop-block -o size=1Gi v1 makes a volume, and docker run -v v1:/data uses it.
//
// # Words
//
// A driver is what Docker calls: this server. Its name is that of the socket, without ".sock". An id is one use of a volume, chosen
// by Docker: a container has one for each of its volumes, and docker cp and the like have their own. Docker sends the same id to
// Unmount as it sent to Mount. A volume is in use while it has an id.
//
// # A life
//
//	docker volume create -d loop-block -o size=1Gi v1
//	    Create   the making is on record; Provision; the volume is on record
//	docker run -v v1:/data ...
//	    Mount    the id is on record; the volume manager attaches, stages and sets up; the answer is the path
//	docker run -v v1:/data ...
//	    Mount    a second id is on record; the answer is the same path
//	kill -9 of this process, and its start
//	             volumes and ids are read; the mounts of volumes in use are compared with the mount table, and what is missing is
//	             made again; mounts that no id uses are taken off. Containers notice nothing
//	the containers end
//	    Unmount  the id leaves the record; with the last one the volume is torn down, unstaged and detached
//	docker volume rm v1
//	    Remove   the removal is on record; Delete; the record goes
//
// A volume in use is one volume of one pod of a [volumemanager.Manager], which keeps records of its own: what is said there about
// uncertain calls, hung servers and foreign mounts holds here.
//
// # Guarantees
//
// What is done is on record before it is done. Records of volumes are synced (StateDir). Those of ids end with the boot, as
// containers do (RuntimeDir). After kill -9 at any instruction Docker may repeat its call, and gets the answer that the first one
// would have got. Docker repeats a call for half a minute by itself while nothing listens at the socket.
//
// Calls for one volume take turns. A call ends with an error when Docker has gone, or after [Options].CallTimeout. A Mount that
// fails, or whose caller has gone, takes its id back. An error that another attempt will not mend is answered at once; others are
// tried again until the call ends. An Unmount that fails has taken its id off the record: the manager goes on trying to take the
// volume away, and an Unmount that is repeated waits for that.
//
// A volume is removed only when nothing on this machine uses it. Docker itself refuses to remove a volume that a container has. If
// there are ids all the same, which Docker has forgotten, the mounts of all processes are read: one in another mount namespace
// that shows the volume, or what was mounted when Mount was answered, keeps it. Where they cannot be read, the volume is kept.
//
// When the context of [Server.Run] ends, the calls that are under way may end within [Options].Grace. Volumes in use stay mounted.
//
// Requests are at most 64 KiB, and 64 calls run at once; others are refused. The values of options are in no record, log or
// error. Whoever can connect can mount: the socket belongs to its owner alone.
//
// # What Docker cannot say
//
// Docker's protocol has no read-only, raw block device, fsGroup, expansion or snapshot. Docker itself makes -v v1:/data:ro
// read-only. The scope is always local: each machine has its own volumes.
package dockerserver
