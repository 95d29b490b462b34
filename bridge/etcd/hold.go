package etcd

import (
	"context"
	"errors"
	"fmt"
	"net/url"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/types"
)

// ErrNotAlive says that the lease of a node has ended: nothing is given to it.
var ErrNotAlive = errors.New("the node's lease has ended")

// HeldError says that another node has a volume.
type HeldError struct {
	// Volume is the volume, Node the node that has it.
	Volume string
	Node   types.NodeName
}

// Error names both.
func (e *HeldError) Error() string {
	return fmt.Sprintf("volume %q is held by node %q", e.Volume, e.Node)
}

// Hold writes that a node has a volume, which one node can have at a time, if the node's lease lives and no other node has the
// volume. All three are one transaction, so no other write comes between. It is for plugins that attach:
// storage that does not know by itself who uses it is given to one node. It succeeds when that node has it already.
//
// The error matches [ErrNotAlive], or is a [*HeldError]. The hold does not end with the lease: that a node is silent proves
// nothing. It ends by [Store.Release]. After any other error the volume may be the node's: ask again, or release it.
func (s *Store) Hold(ctx context.Context, volume string, node types.NodeName, lease types.NamespacedName) error {
	holder, alive := s.keys.ofHolder(url.PathEscape(volume)), s.keys.ofLease(lease)
	response, err := s.commit(ctx, func(txn clientv3.Txn) clientv3.Txn {
		return txn.
			If(clientv3.Compare(clientv3.CreateRevision(holder), "=", 0), clientv3.Compare(clientv3.CreateRevision(alive), ">", 0)).
			Then(clientv3.OpPut(holder, string(node))).
			Else(clientv3.OpGet(holder), clientv3.OpGet(alive, clientv3.WithKeysOnly()))
	})
	what := fmt.Sprintf("give volume %q to node %q", volume, node)
	if err != nil {
		return classify(ctx, what, err)
	}
	if response.Succeeded {
		return nil
	}
	held, living := response.Responses[0].GetResponseRange().Kvs, response.Responses[1].GetResponseRange().Kvs
	switch {
	case len(held) > 0 && string(held[0].Value) != string(node):
		return fmt.Errorf("%s: %w", what, &HeldError{Volume: volume, Node: types.NodeName(held[0].Value)})
	case len(living) == 0:
		return fmt.Errorf("%s: %w", what, ErrNotAlive)
	}
	return nil
}

// Holder returns the node that has a volume; empty when none has.
func (s *Store) Holder(ctx context.Context, volume string) (types.NodeName, error) {
	response, err := s.get(ctx, s.keys.ofHolder(url.PathEscape(volume)))
	if err != nil {
		return "", classify(ctx, fmt.Sprintf("who has volume %q", volume), err)
	}
	if len(response.Kvs) == 0 {
		return "", nil
	}
	return types.NodeName(response.Kvs[0].Value), nil
}

// Release writes that a node does not have a volume any more. It succeeds when it has not.
func (s *Store) Release(ctx context.Context, volume string, node types.NodeName) error {
	holder := s.keys.ofHolder(url.PathEscape(volume))
	_, err := s.commit(ctx, func(txn clientv3.Txn) clientv3.Txn {
		return txn.If(clientv3.Compare(clientv3.Value(holder), "=", string(node))).Then(clientv3.OpDelete(holder))
	})
	if err != nil {
		return classify(ctx, fmt.Sprintf("take volume %q from node %q", volume, node), err)
	}
	return nil
}
