package reconciler

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/cache"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

// planned is the number of random views.
const planned = 3000

// randomView returns a random view of a volume with up to three pods. Some views never occur in a manager.
func randomView(r *rand.Rand) volumeView {
	some := func() bool { return r.IntN(4) == 0 }
	v := volumeView{
		attachable: some(), byController: some(), adopted: some(), pending: some(),
		attached: cache.AttachState(r.IntN(3)), device: operationexecutor.DeviceMountState(r.IntN(3)),
	}
	for i := range r.IntN(4) {
		p := podView{
			name: volume.UniquePodName("abc"[i : i+1]), wanted: r.IntN(2) == 0, remount: some(), expand: some(), pending: some(),
			state: operationexecutor.VolumeMountState(r.IntN(3)),
		}
		p.waits, p.mayUse = p.wanted && some(), !p.wanted && some()
		v.pods = append(v.pods, p)
	}
	v.known = some() || v.attached != cache.NotAttached || v.device != operationexecutor.DeviceNotMounted || len(v.pods) > 0
	return v
}

// TestEveryPlanKeepsTheRules checks the plans of random views.
func TestEveryPlanKeepsTheRules(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 5))
	for range planned {
		v := randomView(r)
		before := fmt.Sprintf("%+v", v)
		actions := v.plan(nil)
		require.Equal(t, before, fmt.Sprintf("%+v", v), "a plan changes nothing")
		require.Equal(t, actions, v.plan(nil), "and is always the same")
		for _, a := range actions {
			require.NoError(t, v.breaks(a), "%s\n%v", before, describe(actions))
		}
		ofWhole := slices.IndexFunc(actions, func(a action) bool { return a.pod == "" })
		require.True(t, ofWhole < 0 || ofWhole == len(actions)-1, "what is done to the whole volume comes last: %v", describe(actions))
	}
}

// breaks returns an error if an action breaks a rule of the planner.
func (v volumeView) breaks(a action) error {
	p := podView{}
	if i := slices.IndexFunc(v.pods, func(p podView) bool { return p.name == a.pod }); i >= 0 {
		p = v.pods[i]
	}
	switch {
	case v.pending, p.pending:
		return fmt.Errorf("%s while an operation runs", a.verb)
	case a.verb == verbUnmount && (p.wanted || p.mayUse):
		return fmt.Errorf("pod %s may use it", a.pod)
	case a.verb == verbMount && (!p.wanted || p.waits || p.state == operationexecutor.VolumeMounted):
		return fmt.Errorf("pod %s gets what it does not want, or has", a.pod)
	case (a.verb == verbRemount || a.verb == verbExpand) && p.state != operationexecutor.VolumeMounted:
		return fmt.Errorf("pod %s does not have it", a.pod)
	case a.verb >= verbMount && a.verb <= verbExpand && v.attachable && v.attached != cache.Attached:
		return fmt.Errorf("it is not attached")
	case a.verb >= verbUnmountDevice && (v.isSetUp() || v.isWanted() || v.adopted):
		return fmt.Errorf("%s while a pod may use it", a.verb)
	case a.verb >= verbDetach && v.device != operationexecutor.DeviceNotMounted:
		return fmt.Errorf("%s while it may be staged", a.verb)
	case a.verb == verbForget && v.attachable && v.attached != cache.NotAttached && !v.byController:
		return fmt.Errorf("forgotten while it may be attached")
	}
	return nil
}

// TestEveryPlanComesToAnEnd: if every action succeeds, the pods that need the volume have it in the end, and no others.
func TestEveryPlanComesToAnEnd(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 7))
	for range planned {
		v := randomView(r)
		v.pending, v.adopted = false, false
		for i := range v.pods {
			v.pods[i].pending, v.pods[i].mayUse = false, false
			// A pod that has the volume does not wait for it in another form.
			v.pods[i].waits = v.pods[i].waits && v.pods[i].state == operationexecutor.VolumeNotMounted
		}
		first, rounds := fmt.Sprintf("%+v", v), 0
		for actions := v.plan(nil); len(actions) > 0; actions = v.plan(nil) {
			for _, a := range actions {
				v.succeed(a)
			}
			rounds++
			require.Less(t, rounds, 12, first)
		}
		for _, p := range v.pods {
			mounted := p.state == operationexecutor.VolumeMounted && !p.remount
			require.Equal(t, p.wanted && !p.waits, mounted, "%s\n%+v", first, v)
		}
		if !v.isWanted() {
			assert.False(t, v.known, first)
		}
	}
}

// succeed makes the changes of a successful action.
func (v *volumeView) succeed(a action) {
	of := func(change func(p *podView)) {
		for i := range v.pods {
			if v.pods[i].name == a.pod || a.pod == "" {
				change(&v.pods[i])
			}
		}
	}
	switch a.verb {
	case verbAttach, verbVerify:
		v.attached, v.known = cache.Attached, true
	case verbMount:
		v.known, v.device = true, operationexecutor.DeviceGloballyMounted
		of(func(p *podView) { p.state, p.remount = operationexecutor.VolumeMounted, false })
	case verbRemount:
		of(func(p *podView) { p.remount = false })
	case verbExpand:
		a.pod = ""
		of(func(p *podView) { p.expand = false })
	case verbUnmount:
		of(func(p *podView) { p.state, p.remount = operationexecutor.VolumeNotMounted, false })
	case verbUnmountDevice:
		v.device = operationexecutor.DeviceNotMounted
	case verbDetach, verbForget:
		v.attached, v.known = cache.NotAttached, false
		of(func(p *podView) { p.waits = false })
	}
}
