package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/faultrun"
)

// The manifests of the tests. Everything has a UID, so that every run has the same names.
const (
	podUID   = "7b1d0000-0000-4000-8000-000000000001"
	dataUID  = "7b1d0000-0000-4000-8000-000000000002"
	diskUID  = "7b1d0000-0000-4000-8000-000000000003"
	classDoc = `{"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "image"}, "allowVolumeExpansion": true,
		"provisioner": "volumekit.io/loop-block", "reclaimPolicy": "Delete", "parameters": {"fstype": %q}}`
	claimDoc = `{"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": %q, "uid": %q}, "spec": {
		"storageClassName": "image", "accessModes": ["ReadWriteOnce"], "volumeMode": %q,
		"resources": {"requests": {"storage": %q}}}}`
	podDoc = `{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "uid": %q}, "spec": {
		"containers": [{"name": "server", "image": "none", "volumeMounts": [
			{"name": "data", "mountPath": "/data"}, {"name": "data", "mountPath": "/part", "subPath": "part/of"},
			{"name": "scratch", "mountPath": "/scratch"},
			{"name": "memory", "mountPath": "/memory"}, {"name": "host", "mountPath": "/host"}],
			"volumeDevices": [{"name": "disk", "devicePath": "/dev/disk"}]}],
		"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
			{"name": "disk", "persistentVolumeClaim": {"claimName": "disk"}},
			{"name": "scratch", "emptyDir": {}},
			{"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
			{"name": "host", "hostPath": {"path": %q, "type": "Directory"}}]}}`
)

// filesystem is that of a volume.
type filesystem struct {
	name        string
	size, grown int64 // in MiB
	least       int64 // how large it is at least when it has grown
	uuid        int64 // where in the image its UUID is
}

func ext4() filesystem {
	return filesystem{name: "ext4", size: 8, grown: 24, least: 16, uuid: 1024 + 0x68}
}
func xfs() filesystem { return filesystem{name: "xfs", size: 300, grown: 340, least: 260, uuid: 32} }

// node is one machine: a mount namespace with a filesystem in memory, in which agents run one after the other. Nothing
// of it outlives the namespace but loop devices, for which check looks.
type node struct {
	programs   programs
	filesystem filesystem
	namespace  *faultrun.Namespace
	dir        string // of its own, for a loop device tells the path of its file alone
	generation int    // of the claims: how often they were wanted anew
	grown      bool   // the claims ask for more than at first
}

// newNode makes a machine.
func newNode(p programs, dir string, f filesystem) (*node, error) {
	namespace, err := faultrun.NewNamespace()
	if err != nil {
		return nil, err
	}
	n := &node{programs: p, filesystem: f, namespace: namespace, dir: dir}
	if err := namespace.Do(n.furnish); err != nil {
		return nil, errors.Join(err, namespace.Close())
	}
	return n, nil
}

// furnish makes what is on the machine before an agent is, and nothing of which is the agent's.
func (n *node) furnish() error {
	if err := unix.Mount("memory", n.dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755"); err != nil {
		return err
	}
	for _, name := range []string{"wanted", "outside", "outside/mount", "outside/shared"} {
		if err := os.Mkdir(n.path(name), 0o755); err != nil {
			return err
		}
	}
	if err := unix.Mount("memory", n.path("outside/mount"), "tmpfs", 0, "size=64k"); err != nil {
		return err
	}
	for _, name := range foreign() {
		if err := os.WriteFile(n.path(name), []byte(name), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// foreign are files that no agent may touch: in a directory, on a mount, and in the directory that a pod shares.
func foreign() []string {
	return []string{"outside/file", "outside/mount/file", "outside/shared/file"}
}

func (n *node) path(name string) string { return filepath.Join(n.dir, name) }

// close ends the machine. It unmounts the filesystem first. If a directory were removed on which another process has still a mount,
// these mounts would stay together: the file of the loop device would keep the mount above its filesystem, and that the device,
// for ever.
func (n *node) close() error {
	return errors.Join(n.namespace.Do(func() error { return unix.Unmount(n.dir, unix.MNT_DETACH) }), n.namespace.Close())
}

// want writes the manifests. What is not named is not wanted.
func (n *node) want(what want) error {
	return n.namespace.Do(func() error {
		files := map[string]string{"class.json": "", "claims.json": "", "pod.json": ""}
		if what >= claimsWanted {
			files["class.json"] = fmt.Sprintf(classDoc, n.filesystem.name)
			files["claims.json"] = fmt.Sprintf(claimDoc, "data", nth(dataUID, n.generation), "Filesystem", n.sizes()[0]) +
				fmt.Sprintf(claimDoc, "disk", nth(diskUID, n.generation), "Block", n.sizes()[1])
		}
		if what >= podWanted {
			files["pod.json"] = fmt.Sprintf(podDoc, podUID, n.path("outside/shared"))
		}
		for name, content := range files {
			if err := os.WriteFile(n.path("wanted/"+name), []byte(content), 0o644); err != nil {
				return err
			}
		}
		return nil
	})
}

// want is what the manifests say.
type want int

const (
	gone want = iota // nothing is wanted, and no agent runs
	nothingWanted
	claimsWanted
	podWanted
)

func (w want) String() string {
	return [...]string{"nothing runs", "nothing is wanted", "the claims are wanted", "the pod is wanted"}[w]
}

// start starts an agent.
func (n *node) start(ctx context.Context, judge faultrun.Judge, calls faultrun.Calls) (*process, error) {
	ctx, stop := context.WithCancel(ctx)
	p := &process{told: newTranscript(), stop: stop, ended: make(chan struct{})}
	var err error
	p.run, err = faultrun.Start(ctx, faultrun.Program{
		Path: n.programs.agent, Second: n.programs.second, Namespace: n.namespace, Dir: "/", Judge: judge, Calls: calls,
		Args:   []string{"-manifests", n.path("wanted"), "-root", n.path("root"), "-run", n.path("run"), "-retry", "5ms", "-report-after", "10s"},
		Env:    []string{"PATH=" + os.Getenv("PATH"), "GOGC=off"}, // it lives for milliseconds
		Stdout: p.told, Stderr: p.told,
	})
	if err != nil {
		stop()
		return nil, errors.Join(err, errors.New(p.told.String()))
	}
	go func() {
		defer close(p.ended)
		defer stop()
		p.result, p.err = p.run.Wait()
	}()
	return p, nil
}

// hangUp tells an agent that the manifests have changed.
func (p *process) hangUp() { _ = p.run.Signal(syscall.SIGHUP) } // it may have ended

// state is what is there: every mount, loop device, file and directory, as text.
type state []string

// What differs from life to life: the name of a record, which is a hash of a name with an UID, and the numbers of the file
// that is bound as a sub-path.
var (
	recordName = regexp.MustCompile(`\b[0-9a-f]{16,}\.record\b`)
	boundFile  = regexp.MustCompile(`/\.1\.[0-9]+-[0-9]+-[0-9]+\.`)
	loopDevice = regexp.MustCompile(`/dev/loop[0-9]+`)
)

// general is a text without what differs from life to life.
func (n *node) general(text string) string {
	text = strings.ReplaceAll(text, n.dir+"/", "")
	text = claimUID.ReplaceAllString(text, "7b1d0000-")
	text = recordName.ReplaceAllString(text, "*.record")
	text = loopDevice.ReplaceAllString(text, "/dev/loop*")
	return boundFile.ReplaceAllString(text, "/.1.*.")
}

// renew has claims that are wanted from now on be others than those that were deleted.
func (n *node) renew() {
	n.generation++
	n.grown = false
}

// sizes are those of the claims.
func (n *node) sizes() [2]string {
	if n.grown {
		return [...]string{fmt.Sprintf("%dMi", n.filesystem.grown), "2Mi"}
	}
	return [...]string{fmt.Sprintf("%dMi", n.filesystem.size), "1Mi"}
}

// checkGrown finds out whether the volumes of the claims are as large as these have become: the images, the device that the
// pod has and, if that has been staged since, the filesystem.
func (n *node) checkGrown(staged bool) error {
	return n.namespace.Do(func() error {
		sizes := map[string]int64{n.image(n.claimOf(dataUID)): n.filesystem.grown << 20, n.image(n.claimOf(diskUID)): 2 << 20}
		for path := range n.canaries() {
			if strings.Contains(path, "/volumeDevices/") {
				sizes[path] = 2 << 20
			}
		}
		var errs []error
		for path, wanted := range sizes {
			has, err := sizeOf(path)
			if err == nil && has != wanted {
				err = fmt.Errorf("%s has %d bytes and not %d", path, has, wanted)
			}
			errs = append(errs, err)
		}
		var st unix.Statfs_t
		mounted := n.path("root/pods/" + podUID + "/volumes/volumekit.io~loop-block/pvc-" + n.claimOf(dataUID))
		err := os.NewSyscallError("statfs "+mounted, unix.Statfs(mounted, &st))
		if has := int64(st.Blocks) * st.Bsize; err == nil && staged && has < n.filesystem.least<<20 {
			err = fmt.Errorf("the filesystem has only %d bytes", has)
		}
		return errors.Join(append(errs, err)...)
	})
}

func sizeOf(path string) (int64, error) {
	file, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer file.Close()
	return file.Seek(0, io.SeekEnd)
}

// nth is the UID of the claim of a generation.
func nth(uid string, generation int) string { return fmt.Sprintf("7b1d%04x%s", generation, uid[8:]) }

// claimUID is how the UID of a claim begins, of whatever generation.
var claimUID = regexp.MustCompile(`\b7b1d[0-9a-f]{4}-`)

// look describes the machine, when no record is just being written: the manager may still note what it has done.
func (n *node) look() (state, error) {
	end := time.Now().Add(5 * time.Second)
	for {
		s, err := n.lookOnce()
		writing := slices.ContainsFunc(s, func(one string) bool { return strings.Contains(one, "/.tmp-") })
		if err != nil || !writing || time.Now().After(end) {
			return slices.DeleteFunc(s, isMark), err
		}
		<-time.After(5 * time.Millisecond)
	}
}

// isMark reports whether something is the mark by which a manager knows that its records are complete: it makes that when it
// can, and looks at the disk once more where it is missing.
func isMark(one string) bool { return strings.HasSuffix(one, "/known") }

// lookOnce describes the machine. Files are told by name and mode, mounts without what differs from run to run.
func (n *node) lookOnce() (state, error) {
	var s state
	err := n.namespace.Do(func() error {
		mounts, err := n.mounts()
		if err != nil {
			return err
		}
		loops, err := n.loops()
		if err != nil {
			return err
		}
		files, err := n.files("root", "run", "outside")
		s = slices.Concat(mounts, loops, files)
		for i := range s {
			s[i] = n.general(s[i])
		}
		slices.Sort(s)
		return err
	})
	return s, err
}

// mounts returns the lines of the mount table that are about this machine.
func (n *node) mounts() (state, error) {
	table, err := os.ReadFile("/proc/thread-self/mountinfo")
	if err != nil {
		return nil, err
	}
	var s state
	for text := range strings.Lines(string(table)) {
		f := strings.Fields(text)
		if rel, ok := strings.CutPrefix(f[4], n.dir+"/"); ok {
			dash := slices.Index(f, "-")
			s = append(s, fmt.Sprintf("mount %s %s of %s %s %s", rel, f[5], withoutDigits(f[3]), f[dash+1], withoutDigits(f[dash+2])))
		}
	}
	slices.Sort(s)
	return s, nil
}

// withoutDigits is the source of a mount, or a device, without the number of the loop device, and without what marks the tmpfs of
// one volume.
func withoutDigits(source string) string {
	if strings.HasPrefix(source, "volumekit-") {
		return "volumekit-"
	}
	return strings.TrimRight(source, "0123456789")
}

// loops returns the loop devices whose files are on this machine.
func (n *node) loops() (state, error) {
	devices, err := os.ReadDir("/sys/block")
	if err != nil {
		return nil, err
	}
	var s state
	for _, device := range devices {
		content, err := os.ReadFile("/sys/block/" + device.Name() + "/loop/backing_file")
		if err != nil {
			continue // it is free, or no loop device
		}
		if rel, ok := strings.CutPrefix(strings.TrimSpace(string(content)), n.dir+"/"); ok {
			s = append(s, "loop device of "+rel)
		}
	}
	slices.Sort(s)
	return s, nil
}

// asks is an ioctl that asks something of a loop device and changes nothing.
var asks = regexp.MustCompile(`^ioctl\(/dev/(loop[0-9]+), (LOOP_GET_STATUS64|BLKGET.*|0x.*)\)$`)

// asksOthers reports whether a call asks something of a loop device that has nothing to do with this machine: who looks for
// its own has to ask all, of which there are as many as others have made.
func (n *node) asksOthers(call faultrun.Call) bool {
	if call.Number != unix.SYS_IOCTL {
		return false
	}
	found := asks.FindStringSubmatch(call.String())
	if found == nil {
		return false
	}
	content, err := os.ReadFile("/sys/block/" + found[1] + "/loop/backing_file")
	return err != nil || !strings.HasPrefix(string(content), n.dir+"/")
}

// files lists what lies in directories, without looking into mounts.
func (n *node) files(dirs ...string) (state, error) {
	var s state
	for _, dir := range dirs {
		var top unix.Stat_t // of that directory, which may be on a filesystem of its own
		if err := unix.Stat(n.path(dir), &top); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		err := filepath.WalkDir(n.path(dir), func(path string, d fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil // not yet, or not any more
			}
			if err != nil {
				return err
			}
			rel := strings.TrimPrefix(path, n.dir+"/")
			if d.Name() == "canary" {
				return nil // what a pod has written is looked at by checkUse
			}
			s = append(s, fmt.Sprintf("%s %s", d.Type(), rel))
			var here unix.Stat_t
			if d.IsDir() && unix.Lstat(path, &here) == nil && here.Dev != top.Dev {
				return filepath.SkipDir
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return s, nil
}

// beyond returns what is in s and not in allowed.
func (s state) beyond(allowed state) state {
	var more state
	left := slices.Clone(allowed)
	for _, one := range s {
		if i := slices.Index(left, one); i >= 0 {
			left = slices.Delete(left, i, i+1)
		} else {
			more = append(more, one)
		}
	}
	return more
}

// checkForeign returns an error if foreign files or mounts have changed.
func (n *node) checkForeign() error {
	return n.namespace.Do(func() error {
		var errs []error
		for _, name := range foreign() {
			content, err := os.ReadFile(n.path(name))
			if err == nil && string(content) != name {
				err = fmt.Errorf("%s: it says %q", name, content)
			}
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	})
}

// canaries are where a pod has written, and what.
func (n *node) canaries() map[string]string {
	pod := n.path("root/pods/" + podUID)
	dataUID, diskUID := n.claimOf(dataUID), n.claimOf(diskUID)
	return map[string]string{
		pod + "/volumes/volumekit.io~loop-block/pvc-" + dataUID + "/canary":                  "data",
		pod + "/volume-subpaths/volumekit.io~loop-block~pvc-" + dataUID + "/server/1/canary": "part of data",
		pod + "/volumes/kubernetes.io~empty-dir/scratch/canary":                              "scratch",
		pod + "/volumes/kubernetes.io~empty-dir/memory/canary":                               "memory",
		pod + "/volumeDevices/volumekit.io~loop-block/pvc-" + diskUID:                        "disk",
	}
}

// claimOf returns the UID of a claim whose volume is there: an agent that was killed before it had deleted the claims finds
// that they are wanted again.
func (n *node) claimOf(uid string) string {
	for generation := n.generation; generation > 0; generation-- {
		if _, err := os.Lstat(n.image(nth(uid, generation))); err == nil {
			return nth(uid, generation)
		}
	}
	return uid
}

// image is the path of the image of a claim's volume.
func (n *node) image(uid string) string {
	return n.path("root/plugins/volumekit.io/loop-block/images/pvc-" + uid + ".img")
}

// isLasting reports whether what was written there outlives the pod.
func isLasting(path string) bool { return strings.Contains(path, "/pvc-") }

// use writes into every volume, as the pod would.
func (n *node) use() error {
	return n.namespace.Do(func() error {
		for path, content := range n.canaries() {
			if err := writeSynced(path, content); err != nil {
				return err
			}
		}
		return nil
	})
}

func writeSynced(path, content string) error {
	flags := os.O_WRONLY
	if filepath.Base(path) == "canary" {
		flags |= os.O_CREATE
	}
	file, err := os.OpenFile(path, flags, 0o644)
	if err != nil {
		return err
	}
	_, err = file.WriteString(content)
	return errors.Join(err, file.Sync(), file.Close())
}

// checkUse finds out whether what was written is there still: everything, or what outlives a pod.
func (n *node) checkUse(still func(path string) bool) error {
	return n.namespace.Do(func() error {
		var errs []error
		canaries := n.canaries()
		for _, path := range slices.Sorted(maps.Keys(canaries)) {
			if !still(path) {
				continue
			}
			file, err := os.Open(path)
			if err != nil {
				errs = append(errs, err)
				continue
			}
			content := make([]byte, len(canaries[path]))
			_, err = file.Read(content)
			if err == nil && string(content) != canaries[path] {
				err = fmt.Errorf("%s says %q", path, content)
			}
			errs = append(errs, err, file.Close())
		}
		return errors.Join(errs...)
	})
}

// uuid returns the UUID of the filesystem of the volume, or nothing when there is no volume.
func (n *node) uuid() (string, error) {
	var id string
	err := n.namespace.Do(func() error {
		file, err := os.Open(n.image(n.claimOf(dataUID)))
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		defer file.Close()
		content := make([]byte, 16)
		if _, err := file.ReadAt(content, n.filesystem.uuid); err != nil {
			return err
		}
		id = fmt.Sprintf("%x", content)
		return nil
	})
	return id, err
}
