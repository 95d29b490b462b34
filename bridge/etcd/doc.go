// Package etcd is a [store.Store] for clusters: its objects live in an etcd, where every process of the cluster reads, writes and
// watches them. It is a module of its own, for those who want etcd's client.
//
//	client, err := clientv3.New(clientv3.Config{Endpoints: endpoints})
//	s, err := etcd.New(client, etcd.Options{Prefix: "/volumes"})
//	controller := attachdetach.New(plugins, s, attachdetach.Options{})
//
// # What is written
//
// Below the prefix there is one key for each object, {Kind}/objects/{namespace}/{name}, whose value is JSON behind a line of the
// store's own. A deletion takes the key away and, in the same transaction, writes the object as it was last into a key that
// all deletions of a kind share, {Kind}/deleted/{n}: its history is what watches read. Nothing is left that would have to be
// collected. Leases are at lease/{namespace}/{name}, the holders of volumes at holder/{volume}.
//
// # Versions
//
// A resource version is a revision of etcd and the place of the write in its transaction. It is a number, and grows.
//
// # Guarantees
//
// Those of [store.Store], [store.Transactor] and [store.Lessor], by the suite in store/storetest, on a cluster of three members.
// Reads and writes are linearizable: a read that begins after a write was acknowledged sees it, through any member. When a
// member is lost, calls and watches go on through another; without a majority they wait until their context ends. A watch whose
// member has lost its leader, or that fell behind a compaction, is closed, and [store.Mirror] reads again.
//
// A write whose answer was lost is an error, and may have been done. Reading again tells: so do the versions, which let no write
// be done twice.
//
// Leases are etcd's own: they end by the clock of its leader, and the key goes with them. [Store.Hold] writes who has a volume
// only while the lease of the node lives, in one transaction.
//
// Of all reads and writes of a Store [Options].MaxCalls are made at a time, and the others wait for their turn; those that take,
// renew and release leases do not.
//
// A creation is one call of etcd, and so is an update of an object that the Store has read by itself or written lately, and a
// transaction of these whose conditions name versions or ask for nothing. Other writes read first. For that a Store keeps the UIDs,
// versions and times of the last 16,384 objects, and of twice as many at most.
//
// # When etcd is full
//
// An etcd that has reached its quota deletes and does nothing else until its alarm is disarmed. Objects without finalizers are
// deleted all the same, several of one kind in a transaction too, and a dying object by the update that takes its last finalizer
// off: what it was last is not written then, and watches read it as it was before. [Store.Release] and the renewal of leases go on.
// Every other write is an error that matches [store.ErrFull] and says how room is made. etcd can give no lease then: who waits for
// one reads the same in the log, and in the error when the wait ends, and gets the lease as soon as there is room.
package etcd
