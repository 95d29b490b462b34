package fake

import (
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/volume"
)

// Root is the root directory of [NewHost], and Node its default node name.
const (
	Root = "/node"
	Node = types.NodeName("node-1")
)

// NewHost returns a real volume.Host, which does no I/O. The directories of its node are below [Root], in a [Mounter]. An
// empty name means [Node]. NewHost panics if volume.NewHost refuses the name.
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

// hostBox holds the host that Init received.
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
