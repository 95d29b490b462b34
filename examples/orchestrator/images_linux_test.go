package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/faultrun"
	"github.com/volumekit/volumekit/mount/mounttest"
)

// imageCase is something that is done to an image, and killed meanwhile.
type imageCase struct {
	name        string
	do          string
	fsType      string // none: a volume that is mapped
	below       string // the filesystem that the images are on; none: one in memory, which shares no blocks
	copies      bool   // another volume
	preallocate bool
	used        bool // that other volume, or the one that is expanded, is staged and written to
	rare        bool // only in the whole run
}

func imageCases() []imageCase {
	return []imageCase{
		{name: "provision ext4", do: doProvision, fsType: "ext4"},
		{name: "provision ext4 with its space", do: doProvision, fsType: "ext4", preallocate: true},
		{name: "provision block", do: doProvision},
		{name: "provision block with its space", do: doProvision, preallocate: true},
		{name: "provision xfs", do: doProvision, fsType: "xfs", rare: true},
		{name: "provision btrfs", do: doProvision, fsType: "btrfs", rare: true},
		{name: "copy ext4", do: doProvision, fsType: "ext4", copies: true},
		{name: "copy ext4 with its space", do: doProvision, fsType: "ext4", copies: true, preallocate: true, rare: true},
		{name: "copy block", do: doProvision, copies: true},
		{name: "copy xfs", do: doProvision, fsType: "xfs", copies: true, rare: true},
		{name: "copy btrfs", do: doProvision, fsType: "btrfs", copies: true, rare: true},
		{name: "share block", do: doProvision, below: "xfs", copies: true, rare: true},
		{name: "share ext4 in use", do: doProvision, fsType: "ext4", below: "xfs", copies: true, used: true},
		{name: "share xfs in use", do: doProvision, fsType: "xfs", below: "xfs", copies: true, used: true, rare: true},
		{name: "share ext4 on btrfs", do: doProvision, fsType: "ext4", below: "btrfs", copies: true, used: true, rare: true},
		{name: "expand ext4", do: doExpand, fsType: "ext4"},
		{name: "expand ext4 with its space", do: doExpand, fsType: "ext4", preallocate: true},
		{name: "expand block", do: doExpand, rare: true},
		{name: "expand ext4 in use", do: doExpand, fsType: "ext4", used: true},
		{name: "expand xfs in use", do: doExpand, fsType: "xfs", used: true, rare: true},
		{name: "delete ext4", do: doDelete, fsType: "ext4"},
	}
}

// A process that provisions, copies, expands or deletes a volume is killed before every system call with an effect. There is
// the whole volume then, or none. The same step again ends with what was wanted, and a deletion with nothing.
func TestImagesAreWholeOrNotThereWhenKilled(t *testing.T) {
	mounttest.RequireRoot(t)
	all := os.Getenv(envAll) != ""
	p := buildTests(t)
	for _, c := range imageCases() {
		if c.rare && !all {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newImageShop(t, c, p)
			s.killAll(all)
		})
	}
}

// buildTests builds this test binary once more, without the race detector, in place of the agent.
func buildTests(t *testing.T) programs {
	t.Helper()
	dir := t.TempDir()
	p := programs{agent: filepath.Join(dir, "images"), second: filepath.Join(dir, "become")}
	for _, args := range [][]string{
		{"test", "-c", "-race=false", "-vet=off", "-buildvcs=false", "-o", p.agent, "."},
		{"build", "-race=false", "-buildvcs=false", "-o", p.second, "../../internal/faultrun/become"},
	} {
		out, err := exec.CommandContext(t.Context(), "go", args...).CombinedOutput()
		require.NoError(t, err, string(out))
	}
	return p
}

// imageShop is where one case is tried time and again.
type imageShop struct {
	imageCase
	programs programs
	t        *testing.T
	dir      string
	node     imageNode
	order    imageOrder // that which is killed
	template imageOrder // by which the volume is made that is there before it is expanded or deleted
	source   imageOrder // that is copied

	sum     []byte   // of the source
	outside []string // what is beside the images
	killed  int
	again   int
	calls   map[string]int
}

const sourceContent = "what the source holds"

// sizesOf are those of a volume, before and after it is expanded, or of the one that is copied and of the copy.
func sizesOf(fsType string) (small, large int64) {
	switch fsType {
	case "xfs":
		return 300 << 20, 340 << 20
	case "btrfs":
		return 128 << 20, 256 << 20
	case "":
		return 1 << 20, 3 << 20
	}
	return 8 << 20, 24 << 20
}

func newImageShop(t *testing.T, c imageCase, p programs) *imageShop {
	t.Helper()
	s := &imageShop{imageCase: c, programs: p, t: t, dir: t.TempDir(), calls: map[string]int{}}
	require.NoError(t, unix.Mount("memory", s.dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755"))
	// A child of another test that is just being started has all files open for a moment.
	t.Cleanup(func() { assert.NoError(t, unix.Unmount(s.dir, unix.MNT_DETACH)) })
	s.node = imageNode{Root: filepath.Join(s.dir, "node"), Images: filepath.Join(s.dir, "images")}
	if c.below != "" {
		s.layBelow()
	}
	require.NoError(t, os.MkdirAll(s.node.Images, 0o700))
	require.NoError(t, os.MkdirAll(filepath.Join(s.dir, "outside/tmp"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(s.dir, "outside/file"), []byte("outside"), 0o644))

	small, large := sizesOf(c.fsType)
	s.template = imageOrder{Node: s.node, Do: doProvision, Name: "volume", FSType: c.fsType, Size: small, Preallocate: c.preallocate}
	s.order = s.template
	s.order.Do, s.order.Size, s.order.Staged = c.do, large, c.used
	if c.copies {
		s.source = imageOrder{Node: s.node, Do: doProvision, Name: "source", FSType: c.fsType, Size: small}
		s.order.Source = &s.source
		s.makeSource()
	}
	return s
}

// layBelow puts the images on a filesystem of their own.
func (s *imageShop) layBelow() {
	node := imageNode{Root: filepath.Join(s.dir, "below/node"), Images: filepath.Join(s.dir, "below/images")}
	below := imageOrder{Node: node, Do: doProvision, Name: "below", FSType: s.below, Size: 900 << 20}
	require.NoError(s.t, below.carryOut(s.t.Context()))
	s.stage(below)
	s.node.Images = filepath.Join(node.staging("below"), "images")
}

// stage stages a volume until the end of the test.
func (s *imageShop) stage(o imageOrder) string {
	s.t.Helper()
	device, err := o.stage(s.t.Context())
	s.t.Cleanup(func() { assert.NoError(s.t, o.release(context.WithoutCancel(s.t.Context()))) })
	require.NoError(s.t, err)
	return device
}

// makeSource makes the volume that is copied, with something in it.
func (s *imageShop) makeSource() {
	s.t.Helper()
	require.NoError(s.t, s.source.carryOut(s.t.Context()))
	require.NoError(s.t, s.write(s.source))
	if !s.used {
		s.sum = s.sumOf("source")
		return
	}
	s.stage(s.source)
	require.NoError(s.t, os.WriteFile(filepath.Join(s.node.staging("source"), "later"), []byte(sourceContent), 0o644))
}

// write stages a volume, writes into it and releases it.
func (s *imageShop) write(o imageOrder) error {
	device, err := o.stage(s.t.Context())
	if err == nil {
		err = writeSynced(o.canary(device), sourceContent)
	}
	return errors.Join(err, o.release(context.WithoutCancel(s.t.Context())))
}

// canary is where a volume that is staged holds what was written to it.
func (o imageOrder) canary(device string) string {
	if o.FSType == "" {
		return device
	}
	return filepath.Join(o.Node.staging(o.Name), "canary")
}

// point says where a process is killed, and what is wanted then.
type point struct {
	call   int
	second int    // before which call one is killed that does the same again; 0: none
	goal   string // doDelete: nothing is wanted any more
}

// samples is how many calls of a case are tried in the ordinary run, beside the last ones, which give the image its name.
const (
	samples = 3
	last    = 3
)

// killAll kills at all points, or at some of them.
func (s *imageShop) killAll(all bool) {
	require.NoError(s.t, s.prepare())
	made, err := s.run(s.order, 0, nil)
	require.NoError(s.t, err)
	require.NoError(s.t, s.finish(s.order.Do))
	step := 1
	if !all {
		step = max(1, (made-last)/samples)
	}
	for call := 1; call <= made; {
		s.killAt(point{call: call, goal: s.order.Do}, made, all)
		if call += step; call > made-last && step > 1 {
			step, call = 1, max(made-last+1, call-step+1)
		}
	}
	s.t.Logf("%s: killed %d times in %d calls, %d times once more: %v", s.name, s.killed, made, s.again, s.calls)
	assert.Positive(s.t, s.killed)
}

// killAt kills at one point, in one or in all ways.
func (s *imageShop) killAt(p point, made int, all bool) {
	s.t.Helper()
	second, gone := p, p
	second.second = 1 + p.call*7%made
	gone.goal = doDelete
	points := []point{p, second, gone}
	if s.order.Do == doExpand && s.used {
		points = points[:2] // what is in use is not deleted
	}
	if !all {
		points = points[p.call%len(points):][:1]
	}
	for _, one := range points {
		if err := s.try(one); err != nil {
			s.t.Errorf("%s: %+v: %v", s.name, one, err)
		}
	}
}

// try kills at a point, and goes on.
func (s *imageShop) try(p point) error {
	if err := s.prepare(); err != nil {
		return fmt.Errorf("before: %w", err)
	}
	var at string
	if _, err := s.run(s.order, p.call, &at); err != nil || at == "" {
		return errors.Join(err, s.finish(s.order.Do))
	}
	s.killed++
	s.calls[nameOfCall(at)]++
	if err := s.left(); err != nil {
		return fmt.Errorf("killed before %s: %w", at, err)
	}
	next := s.order
	next.Do = p.goal
	if p.second > 0 {
		var second string
		if _, err := s.run(next, p.second, &second); err != nil {
			return fmt.Errorf("killed before %s, and then: %w", at, err)
		}
		if second != "" {
			s.again++
			at += " and again before " + second
		}
		if err := s.left(); err != nil {
			return fmt.Errorf("killed before %s: %w", at, err)
		}
	}
	if _, err := s.run(next, 0, nil); err != nil {
		return fmt.Errorf("killed before %s, and then: %w", at, err)
	}
	if err := s.finish(p.goal); err != nil {
		return fmt.Errorf("killed before %s, in the end: %w", at, err)
	}
	return nil
}

// run has a process carry out an order, and kills it before a call; 0: never. It returns how many calls were made.
func (s *imageShop) run(o imageOrder, call int, at *string) (int, error) {
	ctx, stop := context.WithTimeout(s.t.Context(), patience)
	defer stop()
	text, err := json.Marshal(o)
	if err != nil {
		return 0, err
	}
	var told bytes.Buffer
	run, err := faultrun.Start(ctx, faultrun.Program{
		Path: s.programs.agent, Second: s.programs.second, Dir: "/", Stdout: &told, Stderr: &told,
		Env: []string{
			"PATH=" + os.Getenv("PATH"), "TMPDIR=" + filepath.Join(s.dir, "outside/tmp"), "GOGC=off", envImages + "=" + string(text),
		},
		Judge: func(c faultrun.Call) faultrun.Verdict {
			if c.N != call {
				return faultrun.Verdict{}
			}
			*at = c.Program() + ": " + c.String()
			return faultrun.Kill()
		},
	})
	if err != nil {
		return 0, err
	}
	result, err := run.Wait()
	if err == nil && !result.Killed && !result.State.Success() {
		err = fmt.Errorf("%s: %s: %s", o.Do, result.State, told.String())
	}
	return result.Calls, err
}

// prepare makes what is there before a process is killed.
func (s *imageShop) prepare() error {
	defer func() { s.outside = s.lookOutside() }()
	if s.order.Do == doProvision {
		return nil
	}
	if err := s.template.carryOut(s.t.Context()); err != nil {
		return err
	}
	if err := s.write(s.template); err != nil || !s.used {
		return err
	}
	_, err := s.template.stage(s.t.Context())
	return err
}

// finish finds out whether all is as it has to be in the end, and takes it away.
func (s *imageShop) finish(goal string) error {
	err := s.left()
	names, readErr := s.names()
	if err = errors.Join(err, readErr); err != nil {
		return err
	}
	var want []string
	if s.copies {
		want = append(want, "source.img")
	}
	staged := s.order.Do == doExpand && s.used
	if goal != doDelete {
		want = append(want, "volume.img")
		if staged && s.fsType == "xfs" { // an ext4 may grow as late as when it is staged next
			err = s.isGrown(s.order)
		}
	}
	if !slices.Equal(names, want) {
		err = errors.Join(err, fmt.Errorf("there is %q and not %q", names, want))
	}
	if err == nil && goal != doDelete {
		size, e := sizeOf(s.node.image("volume"))
		if err = e; err == nil && size != s.order.Size {
			err = fmt.Errorf("the image has %d bytes and not %d", size, s.order.Size)
		}
	}
	if staged {
		err = errors.Join(err, s.template.release(s.t.Context()))
		if err == nil {
			err = s.volumeIsWhole()
		}
	}
	deletion := s.order
	deletion.Do = doDelete
	return errors.Join(err, deletion.carryOut(s.t.Context()))
}

// isGrown finds out whether the filesystem of a volume that is staged there has become as large as its image.
func (s *imageShop) isGrown(o imageOrder) error {
	var st unix.Statfs_t
	path := o.Node.staging(o.Name)
	if err := unix.Statfs(path, &st); err != nil {
		return err
	}
	least := s.order.Size * 2 / 3 // the rest is the filesystem's own
	if has := int64(st.Blocks) * st.Bsize; has < least {
		return fmt.Errorf("the filesystem at %q has %d bytes and not %d", path, has, least)
	}
	return nil
}

// left finds out whether what a process has left is in order, whenever it was killed.
func (s *imageShop) left() error {
	if err := errors.Join(waitReporting(s.holds), s.sourceIsWhole()); err != nil {
		return err
	}
	if now := s.lookOutside(); !slices.Equal(now, s.outside) {
		return fmt.Errorf("beside the images there is %q and not %q", now, s.outside)
	}
	names, err := s.names()
	if err != nil {
		return err
	}
	for _, name := range names {
		switch name {
		case "volume.img":
			if s.order.Do != doExpand || !s.used {
				err = errors.Join(err, s.volumeIsWhole())
			}
		case "source.img", "volume.partial":
		default:
			err = errors.Join(err, fmt.Errorf("%q is left", name))
		}
	}
	return err
}

func (s *imageShop) names() ([]string, error) {
	entries, err := os.ReadDir(s.node.Images)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, err
}

// holds returns an error if a loop device has a file that it should not have, or a process has a lock on a file that is left.
func (s *imageShop) holds() error {
	n := &node{dir: s.dir}
	devices, err := n.loops()
	if err != nil {
		return err
	}
	var want state
	if s.below != "" {
		want = append(want, "loop device of below/images/below.img")
	}
	if s.used {
		name := "volume"
		if s.copies {
			name = "source"
		}
		rel, err := filepath.Rel(s.dir, s.node.image(name))
		if err != nil {
			return err
		}
		want = append(want, "loop device of "+rel)
	}
	slices.Sort(want)
	if !slices.Equal(devices, want) {
		return fmt.Errorf("there is %q and not %q: %w", devices, want, errHeld)
	}
	partial, err := os.Open(filepath.Join(s.node.Images, "volume.partial"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer partial.Close()
	if err := unix.Flock(int(partial.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return fmt.Errorf("flock %q: %w: %w", partial.Name(), err, errHeld)
	}
	return nil
}

// sourceIsWhole finds out whether the volume that is copied is as it was.
func (s *imageShop) sourceIsWhole() error {
	switch {
	case !s.copies:
		return nil
	case s.used:
		return contains(filepath.Join(s.node.staging("source"), "later"))
	case !bytes.Equal(s.sum, s.sumOf("source")):
		return errors.New("the source was changed")
	}
	return nil
}

func contains(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	content := make([]byte, len(sourceContent))
	_, err = io.ReadFull(file, content)
	if err == nil && string(content) != sourceContent {
		err = fmt.Errorf("%s says %q", path, content)
	}
	return err
}

// volumeIsWhole finds out whether an image is a volume, at whatever moment it is found. A copy of it is looked at, so that what
// comes next finds it as it was left.
func (s *imageShop) volumeIsWhole() error {
	dir := filepath.Join(s.dir, "check")
	defer os.RemoveAll(dir)
	o := s.order
	o.Node = imageNode{Root: filepath.Join(dir, "node"), Images: filepath.Join(dir, "images")}
	if err := os.MkdirAll(o.Node.Images, 0o700); err != nil {
		return err
	}
	out, err := exec.CommandContext(s.t.Context(), "cp", "--sparse=auto", s.node.image("volume"), o.Node.image("volume")).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	if err := errors.Join(s.hasSize(o), s.isItself(o)); err != nil {
		return err
	}
	device, err := o.stage(s.t.Context())
	if err == nil && (s.copies || s.order.Do != doProvision) {
		err = contains(o.canary(device))
	}
	if err == nil && s.copies && s.used {
		err = contains(filepath.Join(o.Node.staging("volume"), "later"))
	}
	if size, _ := sizeOf(o.Node.image("volume")); err == nil && s.fsType != "" && s.order.Do != doDelete && size == s.order.Size {
		err = s.isGrown(o)
	}
	if err == nil {
		err = writeSynced(o.canary(device), "what is written later")
	}
	if err := errors.Join(err, o.release(context.WithoutCancel(s.t.Context()))); err != nil {
		return fmt.Errorf("a volume that is not whole: %w", err)
	}
	return nil
}

// hasSize finds out whether an image has the size that it is to have, or had.
func (s *imageShop) hasSize(o imageOrder) error {
	size, err := sizeOf(o.Node.image("volume"))
	before := s.order.Do != doProvision && size == s.template.Size
	if err == nil && size != s.order.Size && !before {
		err = fmt.Errorf("the image has %d bytes", size)
	}
	return err
}

// isItself finds out whether a copy has a UUID of its own.
func (s *imageShop) isItself(o imageOrder) error {
	if !s.copies || s.fsType == "" {
		return nil
	}
	places := map[string]int64{"ext4": ext4().uuid, "xfs": xfs().uuid, "btrfs": 0x10020}
	var ids [2][16]byte
	for i, path := range []string{o.Node.image("volume"), s.node.image("source")} {
		file, err := os.Open(path)
		if err != nil {
			return err
		}
		_, err = file.ReadAt(ids[i][:], places[s.fsType])
		if err := errors.Join(err, file.Close()); err != nil {
			return err
		}
	}
	if ids[0] == ids[1] {
		return errors.New("the copy has the UUID of its source")
	}
	return nil
}

func (s *imageShop) sumOf(name string) []byte {
	file, err := os.Open(s.node.image(name))
	require.NoError(s.t, err)
	defer file.Close()
	hash := sha256.New()
	_, err = io.Copy(hash, file)
	require.NoError(s.t, err)
	return hash.Sum(nil)
}

// lookOutside lists what there is beside the images, with its content where that is short.
func (s *imageShop) lookOutside() []string {
	var all []string
	err := filepath.WalkDir(s.dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case path == s.node.Images, path == filepath.Join(s.dir, "below"):
			return fs.SkipDir
		}
		line := strings.TrimPrefix(path, s.dir) + " " + d.Type().String()
		if d.Type().IsRegular() {
			content, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			line += " " + string(content)
		}
		all = append(all, line)
		if filepath.Dir(path) == filepath.Dir(s.node.staging("")) {
			return fs.SkipDir // a volume
		}
		return nil
	})
	require.NoError(s.t, err)
	return all
}
