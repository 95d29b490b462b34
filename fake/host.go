package fake

import (
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/volume"
)

// Root and Node are what [NewHost] says, but where it is told another node.
const (
	Root = "/node"
	Node = types.NodeName("node-1")
)

// NewHost returns the host of a node whose directories lie under [Root] of a [Mounter]. It is the real one, which does no I/O.
// An empty name means [Node]; one that volume.NewHost refuses panics.
func NewHost(node types.NodeName) *volume.Host {
	if node == "" {
		node = Node
	}
	host, err := volume.NewHost(volume.HostOptions{RootDir: Root, NodeName: node})
	if err != nil {
		panic(err)
	}
	return host
}

// hostBox holds the host that Init was given.
type hostBox struct {
	mu   sync.Mutex
	host volume.VolumeHost
}

func (b *hostBox) set(host volume.VolumeHost) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.host = host
}

func (b *hostBox) get() (volume.VolumeHost, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.host == nil {
		return nil, fmt.Errorf("not initialised: register the plugin first: %w", volume.ErrInvalid)
	}
	return b.host, nil
}
