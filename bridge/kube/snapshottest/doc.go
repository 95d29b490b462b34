// Package snapshottest runs controller/snapshot on stores that are not in memory: on etcd, on client-go's fake clients, and with the
// CRDs of its API on a real kube-apiserver (`make test-kube`). That server also gets the manifests of examples/csidriver, because one of
// them needs these CRDs. It is a module of its own, because no other needs both etcd and client-go.
package snapshottest
