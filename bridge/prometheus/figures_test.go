package prometheus

import (
	"testing"
	"time"

	prom "github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volumemanager"
)

func TestDurationsAreInSeconds(t *testing.T) {
	o, registry := NewObserver(), prom.NewPedanticRegistry()
	registry.MustRegister(o)
	info := operationexecutor.OperationInfo{Kind: operationexecutor.OpMount, PluginName: "example.com/disk"}
	o.OperationStarted(info)
	o.OperationStepped(info, operationexecutor.Step{Name: "SetUp", Duration: 1500 * time.Millisecond})
	o.OperationFinished(info, operationexecutor.Result{Duration: 2500 * time.Millisecond})
	for name, want := range map[string]float64{"volumekit_operation_step_duration_seconds": 1.5, "storage_operation_duration_seconds": 2.5} {
		found := gather(t, registry, name)
		assert.Len(t, found, 1, name)
		for _, m := range found {
			assert.InDelta(t, want, m.GetHistogram().GetSampleSum(), 1e-9, name)
		}
	}
}

func TestEachFigureHasItsOwnSeries(t *testing.T) {
	figures := [...]uint64{1, 2, 3, 4, 5, 6}
	n := node{stats: []volumemanager.VolumeStats{{
		Claim:         types.NamespacedName{Namespace: "shop", Name: "data"},
		CapacityBytes: &figures[0], AvailableBytes: &figures[1], UsedBytes: &figures[2],
		Inodes: &figures[3], InodesFree: &figures[4], InodesUsed: &figures[5],
	}}}
	registry := prom.NewPedanticRegistry()
	registry.MustRegister(NewNode(n, NodeOptions{}))
	for i, name := range []string{"capacity_bytes", "available_bytes", "used_bytes", "inodes", "inodes_free", "inodes_used"} {
		found := gather(t, registry, "kubelet_volume_stats_"+name)
		assert.Len(t, found, 1, name)
		for _, m := range found {
			assert.InDelta(t, float64(i+1), m.GetGauge().GetValue(), 0, name)
		}
	}
}

// agedNode notes the age that a scrape asks for.
type agedNode struct {
	node

	maxAge *time.Duration
}

func (n agedNode) Stats(maxAge time.Duration) []volumemanager.VolumeStats {
	*n.maxAge = maxAge
	return nil
}

func TestAScrapeMeasuresOnlyWhatIsOld(t *testing.T) {
	for option, want := range map[time.Duration]time.Duration{0: time.Minute, time.Hour: time.Hour} {
		var asked time.Duration
		registry := prom.NewPedanticRegistry()
		registry.MustRegister(NewNode(agedNode{maxAge: &asked}, NodeOptions{MaxAge: option}))
		gather(t, registry, "")
		assert.Equal(t, want, asked)
	}
}
