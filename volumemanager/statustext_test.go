package volumemanager

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/volume"
)

func TestAStatusIsATableWithReasons(t *testing.T) {
	pod := types.NamespacedName{Namespace: "default", Name: "web"}
	status := NodeStatus{
		Running: true, PodsComplete: true,
		Volumes: []VolumeStatus{
			{PodName: pod, OuterName: "data", Phase: PhaseUnresolved, Err: errors.New("claim \"default/data\" is not bound\nat all")},
			{
				PodName: pod, OuterName: "site", Plugin: "kubernetes.io/nfs", Phase: PhaseMounted, ReadOnly: true, Path: "/lib/site",
				Conditions: []Condition{
					{HealthCondition: volume.HealthCondition{Reason: ReasonUnreachable, Message: "no answer"}},
					{HealthCondition: volume.HealthCondition{Reason: ReasonUnreachable, Message: "no answer"}}, // of its device
				},
			},
			{
				Volume: "a.b/c/d", Plugin: "a.b/c", Phase: PhaseDetaching, DeviceMountPath: "/lib/staged", Attempts: 3,
				Err: errors.New("busy"), NextTry: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
			},
		},
		Damaged: []DamagedRecord{{Path: "/run/x", Err: errors.New("checksum")}},
		Orphans: []Orphan{
			{Path: "/dev/loop1", BackingFile: "/lib/z.img"}, {Path: "/lib/x", Mounted: true, FSType: "tmpfs"}, {Path: "/lib/y", Err: errors.New("not empty")},
		},
		LostData: []LostData{{Volume: "a.b/c/d", Err: errors.New("input/output error")}},
	}
	assert.Equal(t, `POD          VOLUME   PLUGIN             PHASE               PATH
default/web  data     -                  unresolved          -
  claim "default/data" is not bound; at all
default/web  site     kubernetes.io/nfs  mounted, read-only  /lib/site
  Unreachable: no answer
-            a.b/c/d  a.b/c              detaching           /lib/staged
  busy, failed 3 times, next try at 2026-01-02T03:04:05Z
damaged record /run/x: checksum
orphan /dev/loop1, a loop device of /lib/z.img
orphan /lib/x, a mount of tmpfs
orphan /lib/y, a directory: not empty
data of volume a.b/c/d may be lost: input/output error`, status.String())
	assert.Equal(t, `volume data of pod default/web is unresolved: claim "default/data" is not bound; at all`, status.Volumes[0].String())
	assert.Equal(t, "volume a.b/c/d is detaching: busy, failed 3 times, next try at 2026-01-02T03:04:05Z", status.Volumes[2].String())
	const head = "POD  VOLUME  PLUGIN  PHASE  PATH"
	assert.Equal(t, head, NodeStatus{Running: true, PodsComplete: true}.String())
	assert.Regexp(t, `^pods not complete: .* PodsComplete .*\n`+head+"$", NodeStatus{Running: true}.String())
	assert.Regexp(t, `^not running: .*\n`+head+"$", NodeStatus{PodsComplete: true}.String())
}
