#!/bin/sh
# Init of a User-mode Linux guest that runs test binaries on a kernel with NFS, its server, client and daemons, and with the
# device mapper. test.sh boots it with the machine's root as its own, read-only, through hostfs; what is written lives in the
# guest's memory.
#
#   VOLUMEKIT_GUEST   the absolute path of a directory of the machine that is /run/guest here. Each line of its file "run" is a
#                     command, which begins there. What they print, and "guest: passed" or "guest: failed", goes to the
#                     guest's console.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp VOLUMEKIT_MOUNTTEST_WRITABLE=/tmp/export:/run:/var/lib/nfs
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t tmpfs tmpfs /run
mkdir -p /run/guest /run/m/lib
mount --bind "$VOLUMEKIT_GUEST" /run/guest
mount -t tmpfs tmpfs /tmp
mount -t tmpfs tmpfs /var/lib/nfs
mount -t tmpfs dev /dev
mknod -m 666 /dev/null c 1 3
mknod -m 666 /dev/zero c 1 5
mknod -m 666 /dev/urandom c 1 9
mknod -m 600 /dev/loop-control c 10 237
for n in 0 1 2 3 4 5 6 7; do mknod -m 600 "/dev/loop$n" b 7 "$n"; done
ln -s /usr/lib/uml/modules /run/m/lib/modules
modprobe -d /run/m ipv6
ip link set lo up
for module in nfs nfsd nfsv4 nfsv3 loop dm-mod dm-flakey dm-delay; do modprobe -d /run/m "$module"; done
mkdir -p /var/lib/nfs/rpc_pipefs /var/lib/nfs/v4recovery /var/lib/nfs/sm /var/lib/nfs/sm.bak /tmp/export /run/rpcbind /run/sendsigs.omit.d
touch /var/lib/nfs/etab /var/lib/nfs/rmtab /var/lib/nfs/state
mount -t nfsd nfsd /proc/fs/nfsd
mount -t rpc_pipefs rpc_pipefs /var/lib/nfs/rpc_pipefs
rpcbind -w
rpc.statd
exportfs -o rw,fsid=0,no_root_squash,insecure,no_subtree_check '127.0.0.1:/tmp/export' '[::1]:/tmp/export'
rpc.mountd
rpc.nfsd -G 10 -L 10 2
verdict=passed
while read -r command; do
  echo "guest: $command"
  (cd /run/guest && eval "$command") </dev/null || verdict=failed
done < /run/guest/run
echo "guest: $verdict"
busybox poweroff -f
