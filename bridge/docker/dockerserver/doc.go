// Package dockerserver serves a [volume.VolumePlugin] as a Docker volume driver, on a unix socket.
//
// It is for the author of a plugin whose users have Docker, on one machine. The plugin may be of any kind. A plugin
// that provisions creates a volume for each docker volume create. For any other plugin, [Options].Source returns the
// volume of a name.
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
// Docker calls this server a driver. The driver's name is that of the socket, without ".sock". An id is one use of a
// volume, chosen by Docker: a container has one for each of its volumes, and docker cp and similar commands have their
// own. Docker sends the same id to Unmount as to Mount. A volume is in use while it has an id.
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
// The server gives each volume in use to one pod of a [volumemanager.Manager], which keeps its own records. The
// manager's promises about uncertain calls, hung servers and foreign mounts hold here too.
//
// # Guarantees
//
// The server writes a record before each action. Records of volumes are synced (StateDir). Records of ids end with the
// boot, as containers do (RuntimeDir). After kill -9 at any instruction Docker may repeat its call, and gets the answer
// that the first call would have had. While nothing listens on the socket, Docker itself repeats a call for half a
// minute.
//
// Calls for one volume run one after the other. A call ends with an error when Docker closes the request, or after
// [Options].CallTimeout. If a Mount fails, or Docker has closed its request, the server removes the id of the Mount
// from the record. The server returns an error that cannot pass at once, and retries after others until the call ends.
// A failed Unmount has removed its id from the record: the manager continues to tear the volume down, and a repeated
// Unmount waits for that.
//
// The server removes a volume only if no process on this machine uses it. Docker itself does not remove a volume of a
// container. If Docker has forgotten ids, the server reads the mounts of all processes. It keeps the volume if another
// mount namespace has the volume or a part of it mounted, or what Mount's answer showed. It also keeps the volume if it
// cannot read the mounts of a process.
//
// When the context of [Server.Run] ends, running calls have [Options].Grace to end. Volumes in use stay mounted.
//
// A request has at most 64 KiB, and 64 calls run at once; the server refuses others. The values of options are in no
// record, log or error. Every process that can connect can mount, so only the owner of the socket can connect.
//
// # What Docker cannot say
//
// Docker's protocol has no read-only volume, raw block device, fsGroup, expansion or snapshot. Docker itself makes -v
// v1:/data:ro read-only. The scope is always local: each machine has its own volumes.
package dockerserver
