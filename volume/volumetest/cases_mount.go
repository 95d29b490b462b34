package volumetest

import (
	"context"
	"path/filepath"
	"slices"
	"sync"

	"github.com/volumekit/volumekit/volume"
)

func mountCases() []Case { return slices.Concat(setUpCases(), podCases()) }

func setUpCases() []Case {
	return []Case{
		{
			Rule: "M1", Group: "mount", Name: "SetUp makes the volume usable",
			Sentence: "After SetUp the volume MUST be at GetPath, mounted unless it is a plain directory. What a pod writes there, or what the plugin publishes there, MUST be read back.",
			run:      setUpUsable,
		},
		{
			Rule: "M2", Group: "mount", Name: "path",
			Sentence: "GetPath MUST be absolute and always the same, from every mounter and, below the node's root, from every unmounter. GetPath MUST make nothing.",
			run:      pathStable,
		},
		{
			Rule: "M3", Group: "mount", Name: "second SetUp is a no-op",
			Sentence: "A second SetUp MUST succeed, mount nothing on top and leave the content unchanged.",
			run:      secondSetUp,
		},
		{
			Rule: "M4", Group: "mount", Name: "SetUp after a crash",
			Sentence: "SetUp by a new value of the plugin MUST find what an earlier value has set up and leave it unchanged.",
			run:      setUpAfterCrash,
		},
		{
			Rule: "M5", Group: "mount", Name: "two pods at once",
			Sentence: "Pods MUST be able to set up one volume at the same time. Where pods share it, each MUST see what the others write.",
			run:      twoPodsAtOnce,
		},
		{
			Rule: "M6", Group: "mount", Name: "volumes are apart",
			Sentence: "What is written to one volume MUST NOT appear in another.",
			run:      volumesApart,
		},
		{
			Rule: "M7", Group: "mount", Name: "cancelled SetUp",
			Sentence: "SetUp with a context that has ended MUST do no harm: an error that is not uncertain MUST leave nothing mounted, and the next SetUp MUST work.",
			run:      cancelledSetUp,
		},
		{
			Rule: "M8", Group: "mount", Name: "SetUp cancelled midway",
			Sentence: "SetUp whose context ends during the call MUST do no harm: an error that is not uncertain MUST leave nothing mounted, and the next SetUp MUST work.",
			run:      cancelledInSetUp,
		},
		{
			Rule: "M9", Group: "mount", Name: "SetUp beside a TearDown",
			Sentence: "SetUp for one pod beside TearDown for another MUST leave the volume usable for the first pod and gone for the second.",
			run:      setUpDuringTearDown,
		},
		{
			Rule: "M10", Group: "mount", Name: "refresh that fails",
			Sentence: "SetUp with IsRemount or with ReconstructedVolume that fails MUST leave the volume set up, with its content unchanged.",
			run:      failedRefresh,
		},
		{
			Rule: "M11", Group: "mount", Name: "refresh of content",
			Sentence: "SetUp with IsRemount MUST publish the new content, and MUST mount nothing on top.",
			Needs:    volume.CapRemount, run: refreshedContent,
		},
		{
			Rule: "M12", Group: "mount", Name: "mounts as it says",
			Sentence: "SetUpIsMount and MountDeviceIsMount, if the plugin has them, MUST say whether there is a mount at the pod's path after SetUp, and at the staging path after MountDevice.",
			run:      mountsAsItSays,
		},
	}
}

func setUpUsable(e *env) {
	s := e.ready(e.newSpec())
	p := s.forPod().setUp()
	p.expectUsable()
	p.write("file", "content")
	p.expect("file", "content")
	p.tearDown()
	s.release()
}

func pathStable(e *env) {
	s := e.ready(e.newSpec())
	p := s.forPod()
	before := p.path
	if !filepath.IsAbs(before) || filepath.Clean(before) != before {
		e.broken("GetPath %q is not a clean absolute path", before)
	}
	if e.beneathRoot(before) && e.exists(before) {
		e.broken("%s is there before SetUp", before)
	}
	p.setUp()
	p.renew()
	if p.path != before {
		e.broken("GetPath was %q before SetUp and is %q after it", before, p.path)
	}
	if got := p.unmounter().GetPath(); e.beneathRoot(before) && got != before {
		e.broken("GetPath of the unmounter is %q, of the mounter %q", got, before)
	}
	p.tearDown()
	s.release()
}

func secondSetUp(e *env) {
	s := e.ready(e.newSpec())
	p := s.forPod().setUp()
	p.write("file", "content")
	p.setUp()
	p.expectUsable()
	p.expect("file", "content")
	p.tearDown()
	s.release()
}

func setUpAfterCrash(e *env) {
	s := e.ready(e.newSpec())
	p := s.forPod().setUp()
	p.write("file", "content")
	e.crash()
	p.renew()
	p.setUp()
	p.expectUsable()
	p.expect("file", "content")
	p.tearDown()
	p.expectGone()
	s.release()
}

func twoPodsAtOnce(e *env) {
	e.eachInterleaving(func(e *env, n int) bool {
		s := e.ready(e.newSpec())
		p, q := s.forPod(), s.forPod()
		one, two, reached := e.interleaved(n, p.trySetUp, q.trySetUp)
		e.mustBoth(n, "SetUp for two pods", one, two)
		for _, user := range []*podVolume{p, q} {
			user.expectUsable()
			user.expectOwnContent()
		}
		e.expectNothingStacked()
		if e.config.Shared {
			p.write("file", "from the first pod")
			q.expect("file", "from the first pod")
		}
		p.tearDown()
		q.tearDown()
		s.release()
		return reached
	})
	s := e.ready(e.newSpec())
	pods := []*podVolume{s.forPod(), s.forPod(), s.forPod(), s.forPod()}
	for i, err := range setUpTogether(pods) {
		if err != nil {
			e.broken("SetUp of pod %d of %d at once: %v", i+1, len(pods), err)
		}
	}
	for _, p := range pods {
		p.expectUsable()
		p.expectOwnContent()
	}
	e.expectNothingStacked()
	if e.config.Shared {
		pods[0].write("file", "from the first pod")
		pods[1].expect("file", "from the first pod")
		pods[1].write("file", "from the second pod")
		pods[0].expect("file", "from the second pod")
	}
	for _, p := range pods {
		p.tearDown()
	}
	s.release()
}

// setUpTogether sets up all pods at the same time and returns the error of each.
func setUpTogether(pods []*podVolume) []error {
	var wg sync.WaitGroup
	errs := make([]error, len(pods))
	start := make(chan struct{})
	for i, p := range pods {
		wg.Go(func() {
			<-start
			errs[i] = guarded(func() error { return p.trySetUp(p.e.ctx()) })
		})
	}
	close(start)
	wg.Wait()
	return errs
}

func volumesApart(e *env) {
	one, two := e.ready(e.newSpec()), e.ready(e.newSpec())
	p, q := one.forPod().setUp(), two.forPod().setUp()
	p.write("file", "of the first volume")
	if !q.hasOwnContent() && e.exists(filepath.Join(q.path, "file")) {
		e.broken("a file of volume %q is in volume %q", one.spec.Name(), two.spec.Name())
	}
	q.write("file", "of the second volume")
	p.expect("file", "of the first volume")
	p.tearDown()
	q.tearDown()
	one.release()
	two.release()
}

func cancelledSetUp(e *env) {
	s := e.ready(e.newSpec())
	p := s.forPod()
	p.setUpAfterEnded(p.trySetUp(e.ended()))
	s.release()
}

// setUpAfterEnded sets the volume up after a SetUp that returned err when its context had ended, and takes it away again.
func (p *podVolume) setUpAfterEnded(err error) {
	p.e.t.Helper()
	if err != nil && !isUncertain(err) && len(p.e.mountsAt(p.path)) > 0 {
		p.e.broken("SetUp failed with %q, which is not uncertain, and the volume is mounted", err)
	}
	p.e.awaitLost(err)
	p.setUp()
	p.expectUsable()
	p.tearDown()
	p.expectGone()
}

func cancelledInSetUp(e *env) {
	s := e.ready(e.newSpec())
	p := s.forPod()
	whole := timeOf(func() { p.setUp() })
	p.tearDown()
	for n := range midwayPoints {
		p := s.forPod()
		ctx, cancel := e.endsAfter(whole, n)
		err := p.trySetUp(ctx)
		cancel()
		p.setUpAfterEnded(err)
	}
	s.release()
}

func setUpDuringTearDown(e *env) {
	for _, tearDownIsHeld := range []bool{true, false} {
		e.eachInterleaving(func(e *env, n int) bool { return e.tearDownInterleaved(n, tearDownIsHeld) })
	}
	s := e.ready(e.newSpec())
	old := s.forPod().setUp()
	for range 8 {
		next := s.forPod()
		goes, comes := together(func() error { return old.unmounter().TearDown(e.ctx()) }, func() error { return next.trySetUp(e.ctx()) })
		e.must("TearDown beside a SetUp", goes)
		e.must("SetUp beside a TearDown", comes)
		old.expectGone()
		next.expectUsable()
		next.write("file", "content")
		next.expect("file", "content")
		old = next
	}
	old.tearDown()
	s.release()
}

// tearDownInterleaved sets up for one pod while it tears down for another, and holds one of the two.
func (e *env) tearDownInterleaved(n int, tearDownIsHeld bool) (reached bool) {
	e.t.Helper()
	s := e.ready(e.newSpec())
	old, next := s.forPod().setUp(), s.forPod()
	goes, comes := func(ctx context.Context) error { return old.unmounter().TearDown(ctx) }, next.trySetUp
	var one, two error
	if tearDownIsHeld {
		one, two, reached = e.interleaved(n, goes, comes)
	} else {
		one, two, reached = e.interleaved(n, comes, goes)
	}
	e.mustBoth(n, "TearDown for one pod and SetUp for another", one, two)
	old.expectGone()
	next.expectUsable()
	next.write("file", "content")
	next.expect("file", "content")
	next.tearDown()
	s.release()
	return reached
}

// together runs two calls at the same time and returns what each of them does.
func together(one, two func() error) (errOne, errTwo error) {
	var wg sync.WaitGroup
	start := make(chan struct{})
	wg.Go(func() {
		<-start
		errOne = guarded(one)
	})
	close(start)
	errTwo = guarded(two)
	wg.Wait()
	return errOne, errTwo
}

func failedRefresh(e *env) {
	s := e.ready(e.newSpec())
	p := s.forPod()
	whole := timeOf(func() { p.setUp() })
	p.write("file", "content")
	for _, args := range []volume.MounterArgs{{IsRemount: true}, {ReconstructedVolume: true}} {
		p.renew()
		e.awaitLost(p.trySetUpWith(e.ended(), args))
		p.expectUsable()
		p.expect("file", "content")
		for n := range midwayPoints / 4 { // A refresh that finds all as it is takes a part of the time.
			ctx, cancel := e.endsAfter(whole, n)
			err := p.trySetUpWith(ctx, args)
			cancel()
			e.awaitLost(err)
			p.expectUsable()
			p.expect("file", "content")
		}
	}
	p.tearDown()
	s.release()
}

func refreshedContent(e *env) {
	if e.config.Content == nil || e.config.ChangeContent == nil {
		e.t.Skipf("Config.Content or Config.ChangeContent is nil: the content is not the plugin's own, or never changes")
	}
	s := e.ready(e.newSpec())
	p := s.forPod().setUp()
	p.expectOwnContent()
	e.config.ChangeContent(e.t, s.spec)
	p.renew()
	e.must("SetUp with IsRemount", p.trySetUpWith(e.ctx(), volume.MounterArgs{IsRemount: true}))
	p.expectUsable()
	p.expectOwnContent()
	p.tearDown()
	p.expectGone()
	s.release()
}

func mountsAsItSays(e *env) {
	says, ok := e.plugin.(volume.MountingVolumePlugin)
	if !ok {
		e.t.Skipf("the plugin does not say which of its successes leave a mount")
	}
	s := e.ready(e.newSpec())
	p := s.forPod().setUp()
	if said, is := says.SetUpIsMount(s.spec), len(e.mountsAt(p.path)) > 0; said != is {
		e.broken("SetUpIsMount is %t, and that something is mounted at %s is %t", said, p.path, is)
	}
	if s.stagePath != "" {
		if said, is := says.MountDeviceIsMount(s.spec), len(e.mountsAt(s.stagePath)) > 0; said != is {
			e.broken("MountDeviceIsMount is %t, and that something is mounted at %s is %t", said, s.stagePath, is)
		}
	}
	p.tearDown()
	s.release()
}
