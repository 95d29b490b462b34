package operationexecutor_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

var errReplaced = errors.New("another directory is at the path of the root")

// onNode is an operation of a node on a volume that is there as far as the operation needs it, and the calls that change the node.
type onNode struct {
	world *world
	start func() (*operationexecutor.Operation, error)
	calls []string
}

// onNodes are the kinds of operation that a plugin carries out at paths of the node.
func onNodes() map[operationexecutor.OperationKind]func(t *testing.T) onNode {
	filesystem := func(t *testing.T) *world {
		w := stagedWorld(t)
		w.succeeded(w.mount("data", "p"))
		return w
	}
	return map[operationexecutor.OperationKind]func(t *testing.T) onNode{
		operationexecutor.OpMount: func(t *testing.T) onNode {
			w := stagedWorld(t)
			return onNode{w, func() (*operationexecutor.Operation, error) { return w.mount("data", "p") }, []string{"MountDevice", "SetUp"}}
		},
		operationexecutor.OpUnmount: func(t *testing.T) onNode {
			w := filesystem(t)
			return onNode{w, func() (*operationexecutor.Operation, error) { return w.unmount("data", "p") }, []string{"TearDown"}}
		},
		operationexecutor.OpUnmountDevice: func(t *testing.T) onNode {
			w := filesystem(t)
			w.succeeded(w.unmount("data", "p"))
			return onNode{w, func() (*operationexecutor.Operation, error) { return w.unmountDevice("data") }, []string{"UnmountDevice"}}
		},
		operationexecutor.OpMap: func(t *testing.T) onNode {
			w, _ := newBlockWorld(t)
			return onNode{w, w.mapBlock, []string{"SetUpDevice", "MapPodDevice", "MapDevice"}}
		},
		operationexecutor.OpUnmap: func(t *testing.T) onNode {
			w, _ := newBlockWorld(t)
			w.succeeded(w.mapBlock())
			return onNode{w, w.unmapBlock, []string{"UnmapDevice", "UnmapPodDevice"}}
		},
		operationexecutor.OpUnmapDevice: func(t *testing.T) onNode {
			w, _ := newBlockWorld(t)
			w.succeeded(w.mapBlock())
			w.succeeded(w.unmapBlock())
			return onNode{w, func() (*operationexecutor.Operation, error) { return w.unmountDevice("data") }, []string{"TearDownDevice", "RemoveMapPath"}}
		},
		operationexecutor.OpExpandInUse: func(t *testing.T) onNode {
			w, _, s := nodeCase{volume: "20Gi", has: "10Gi", status: nodePending, allocated: "20Gi"}.world(t)
			w.inUse(s)
			return onNode{w, func() (*operationexecutor.Operation, error) {
				return w.executor.ExpandInUseVolume(t.Context(), w.volumeToMount(s, "p", "20Gi"), w.actual, resource.MustParse("10Gi"))
			}, []string{"NodeExpand"}}
		},
	}
}

func TestNothingBeginsWhereTheRootWasReplaced(t *testing.T) {
	for kind, prepare := range onNodes() {
		t.Run(string(kind), func(t *testing.T) {
			o := prepare(t)
			o.world.journal.replaced = errReplaced
			o.world.history.clear()
			op := o.world.ended(o.start())
			require.ErrorIs(t, op.Err(), errReplaced)
			assert.Equal(t, kind, op.Info().Kind)
			assert.Equal(t, operationexecutor.Transient, op.Result().Class)
			for _, call := range o.calls {
				assert.Zero(t, o.world.count(call), call)
			}
		})
	}
}

// TestACallDuringWhichTheRootWasReplacedIsUncertain: it has found nothing at its path, or has made a volume in another directory.
func TestACallDuringWhichTheRootWasReplacedIsUncertain(t *testing.T) {
	for kind, prepare := range onNodes() {
		if kind == operationexecutor.OpExpandInUse {
			continue // A plugin that finds nothing at its path does not say that it has expanded a filesystem.
		}
		for _, call := range prepare(t).calls {
			for what, result := range map[string]error{"success": nil, "failure": errBroken} {
				t.Run(string(kind)+"/"+call+"/"+what, func(t *testing.T) {
					o := prepare(t)
					o.world.plugin.script[call] = func(context.Context) error {
						o.world.journal.replaced = errReplaced
						return result
					}
					o.world.history.clear()
					op := o.world.ended(o.start())
					require.ErrorIs(t, op.Err(), volume.ErrUncertain)
					if result == nil {
						require.ErrorIs(t, op.Err(), errReplaced)
					}
					lines := o.world.history.all()
					assert.Contains(t, lines, call)
					for _, of := range []string{"set-up", "staging"} {
						for _, end := range []string{"forgotten", "done"} {
							if call == "SetUp" && of == "staging" || call == "MapPodDevice" && of == "staging" || call == "MapDevice" && of == "staging" {
								continue // It was staged before.
							}
							assert.NotContains(t, lines, "conclude "+of+" "+end)
						}
					}
				})
			}
		}
	}
}
