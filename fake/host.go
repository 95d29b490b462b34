package fake

import (
	"fmt"
	"sync"

	"github.com/volumekit/volumekit/volume"
)

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
