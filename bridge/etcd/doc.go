// Package etcd is a [store.Store] for clusters: its objects are in an etcd, where every process of the cluster reads, writes and watches
// them. It is a module of its own, because it needs etcd's client.
//
//	client, err := clientv3.New(clientv3.Config{Endpoints: endpoints})
//	s, err := etcd.New(client, etcd.Options{Prefix: "/volumes"})
//	controller := attachdetach.New(plugins, s, attachdetach.Options{})
//
// # What is written
//
// Below the prefix there is one key for each object, {Kind}/objects/{namespace}/{name}. Its value is a line of the store's own, and then
// JSON. A deletion removes the key. In the same transaction it writes the last version of the object into a key that all deletions of a
// kind share, {Kind}/deleted/{n}. Watches read the history of that key, so no garbage is left. Leases are at
// lease/{namespace}/{name}, the holders of volumes at holder/{volume}.
//
// # Versions
//
// A resource version is a revision of etcd and the place of the write in its transaction. It is a number, and grows.
//
// # Guarantees
//
// The guarantees are those of [store.Store], [store.Transactor] and [store.Lessor]. The suite in store/storetest checks them on a cluster
// of three members. Reads and writes are linearizable: a read that begins after a write was acknowledged sees the write, through any
// member. If a member is lost, calls and watches continue through another one. Without a majority they wait until their context ends. A
// watch is closed if its member has lost its leader, or if it fell behind a compaction; [store.Mirror] then reads again.
//
// If the answer to a write is lost, the write is an error and may have been done. The caller reads again to find out. The versions prevent
// that a write is done twice.
//
// Leases are etcd's own: they end by the clock of etcd's leader, which then removes the key. [Store.Hold] writes the holder of a volume in
// one transaction that requires the lease of the node.
//
// A Store makes at most [Options].MaxCalls reads and writes at a time; others wait. Calls that acquire, renew and release leases do not
// wait.
//
// A creation is one call of etcd. So is an update of an object that the Store has recently read by itself or written, and a transaction of
// such writes, if each of its conditions names a version or is empty. Other writes read first. For that a Store keeps the UIDs, versions
// and times of the last 16,384 objects, and of twice as many at most.
//
// # When etcd is full
//
// An etcd that has reached its quota only deletes until its alarm is disarmed. So the store still deletes objects without finalizers, also
// several of one kind in a transaction. It also deletes an object whose last finalizer an update removes. It cannot write the last version
// then: watches get the version before. [Store.Release] and the renewal of leases still work. Every other write is an error that matches
// [store.ErrFull] and says how to make room. etcd grants no leases then. A caller that waits for a lease finds the same text in the log,
// and in the error when the wait ends, and gets the lease as soon as there is room.
package etcd
