package volumemanager

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/internal/record"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/journal"
)

// freezer stops the operations of a manager for good after a number of steps, as a kill does, as far as the world can see.
type freezer struct {
	mu    sync.Mutex
	steps int
	at    int
	last  string
	thaw  chan struct{}
}

func (f *freezer) OperationStarted(operationexecutor.OperationInfo) {}

func (f *freezer) OperationStepped(o operationexecutor.OperationInfo, s operationexecutor.Step) {
	f.mu.Lock()
	f.steps++
	frozen := f.steps >= f.at
	if f.steps == f.at {
		f.last = fmt.Sprintf("%s of %s", s.Name, o.Kind)
	}
	f.mu.Unlock()
	if frozen {
		<-f.thaw
	}
}

func (f *freezer) OperationFinished(operationexecutor.OperationInfo, operationexecutor.Result) {}

// kill freezes the world's manager, and starts another one on a copy of its records.
func (w *world) kill(thaw chan struct{}) {
	w.t.Helper()
	synctest.Wait()
	o := withRecords(w.t)
	copyRecords(w.t, w.options.RuntimeDir, o.RuntimeDir)
	copyRecords(w.t, w.options.StateDir, o.StateDir)
	old := w.stop
	w.t.Cleanup(func() {
		close(thaw)
		_ = old()
	})
	w.options.RuntimeDir, w.options.StateDir, w.options.Observer = o.RuntimeDir, o.StateDir, nil
	w.start()
}

func copyRecords(t *testing.T, from, to string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(to, 0o700))
	files, err := os.ReadDir(from)
	require.NoError(t, err)
	for _, f := range files {
		content, err := os.ReadFile(filepath.Join(from, f.Name()))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(to, f.Name()), content, 0o600))
	}
}

// TestKilledAfterAnyStepTheNextManagerEndsClean kills a manager after each step of a pod's whole life: every intent, every
// call of the plugin, every conclusion.
func TestKilledAfterAnyStepTheNextManagerEndsClean(t *testing.T) {
	for _, wanted := range []bool{true, false} {
		t.Run(fmt.Sprintf("wanted=%t", wanted), func(t *testing.T) {
			t.Parallel()
			steps := 1
			for ; killedAfter(t, steps, wanted); steps++ {
			}
			assert.Greater(t, steps, 20)
			t.Logf("killed after each of %d steps", steps-1)
		})
	}
}

// killedAfter reports whether there was such a step.
func killedAfter(t *testing.T, step int, wanted bool) (killed bool) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := &freezer{at: step, thaw: make(chan struct{})}
		o := withRecords(t)
		o.Observer = f
		w := newWorld(t, o)
		w.claim("data")
		w.start().PodsComplete()
		pod := podOf("web", "data", "-scratch")
		require.NoError(t, w.manager.AddPod(t.Context(), pod))
		synctest.Wait()
		require.NoError(t, w.manager.RemovePod(pod.UID))
		synctest.Wait()
		if f.last == "" {
			w.isClean()
			return
		}
		killed = true
		before := w.mounts()
		w.kill(f.thaw)
		assert.Equal(t, before, w.mounts(), "nothing is touched before the pods are known")
		if wanted {
			w.add(pod)
			path := w.manager.GetMountedVolumesForPod(volume.GetUniquePodName(pod))["data"].Path
			require.NoError(t, w.mounter.WriteFile(path+"/f", nil, 0o600), "after %s", f.last)
		}
		w.manager.PodsComplete()
		if wanted {
			synctest.Wait()
			require.NoError(t, w.manager.WaitForAttachAndMount(t.Context(), pod))
			w.remove(pod)
		}
		w.isClean()
		if t.Failed() {
			t.Logf("killed after step %d, %s; wanted %t", step, f.last, wanted)
		}
	})
	return killed
}

func TestFoundVolumesAreOnlyAdoptedUntilAllPodsAreKnown(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, withRecords(t))
		w.claim("data")
		w.claim("other")
		pods := []string{"kept", "gone", "removed", "unresolved"}
		w.start()
		w.manager.PodsComplete()
		for _, name := range pods {
			w.add(podOf(name, "data", "other", "-scratch"))
		}
		require.NoError(t, w.stop())
		before := w.mounts()

		m := w.start()
		pass(time.Hour)
		assert.Equal(t, before, w.mounts())
		assert.Empty(t, w.changes(), "no plugin is asked to do anything")
		assert.Len(t, m.Status().Volumes, 3*len(pods))

		w.add(podOf("kept", "data", "other", "-scratch"))
		require.NoError(t, m.RemovePod("uid-removed"))
		require.NoError(t, m.AddPod(t.Context(), podOf("unresolved", "data", "other", "-scratch", "missing")))
		synctest.Wait()
		require.NoError(t, m.WaitForUnmount(t.Context(), podOf("removed")))
		pass(time.Hour)
		assert.Len(t, w.mounts(), 9+2, "removal is a promise, and holds at once")

		m.PodsComplete()
		require.NoError(t, m.WaitForUnmount(t.Context(), podOf("gone")))
		pass(time.Hour)
		assert.Len(t, w.mounts(), 6+2)
	})
}

func TestAllPodsMayBeKnownBeforeRun(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, withRecords(t))
		w.claim("data")
		w.start()
		for _, name := range []string{"kept", "gone"} {
			w.add(podOf(name, "data", "-scratch"))
		}
		require.NoError(t, w.stop())
		m, kept := w.prepare(), podOf("kept", "data", "-scratch")
		require.NoError(t, m.AddPod(t.Context(), kept))
		m.PodsComplete()
		w.run()
		require.NoError(t, m.WaitForAttachAndMount(t.Context(), kept))
		require.NoError(t, m.WaitForUnmount(t.Context(), podOf("gone")))
		pass(time.Hour)
		assert.Len(t, w.mounts(), 3)
	})
}

func TestSetUpsOfAPodWhoseClaimCannotBeReadStay(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, withRecords(t))
		w.claim("data")
		pod := podOf("web", "data")
		w.start()
		w.add(pod)
		require.NoError(t, w.stop())

		w.store = nil
		broken := &brokenStore{}
		w.options.Store = broken
		m := w.start()
		require.NoError(t, m.AddPod(t.Context(), pod))
		m.PodsComplete()
		pass(24 * time.Hour)
		assert.Len(t, w.mounts(), 2, "unknown is not absent")
		require.ErrorIs(t, m.PodStatus(pod.UID)[0].Err, errStore)
	})
}

func TestSecondManagerOfTheSameDirectoriesIsRefused(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, withRecords(t))
		w.start()
		for _, o := range []Options{w.options, {Mounter: w.mounter, RuntimeDir: filepath.Join(t.TempDir(), "other"), StateDir: w.options.StateDir}} {
			second, err := New(w.plugins, o)
			require.NoError(t, err)
			require.ErrorIs(t, second.Run(t.Context()), volume.ErrInUse)
		}
		require.NoError(t, w.stop())
		w.start()
	})
}

// TestAWaitSaysWhyRunCouldNotBegin: a program may look only at the error of its wait.
func TestAWaitSaysWhyRunCouldNotBegin(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, withRecords(t))
		w.start()
		second, err := New(w.plugins, w.options)
		require.NoError(t, err)
		pod := podOf("web", "-scratch")
		require.NoError(t, second.AddPod(t.Context(), pod))
		ended := make(chan error, 1)
		go func() { ended <- second.WaitForAttachAndMount(t.Context(), pod) }()
		synctest.Wait()
		failure := second.Run(t.Context())
		for _, err := range []error{<-ended, second.WaitForUnmount(t.Context(), pod)} {
			require.ErrorIs(t, err, ErrStopped)
			require.ErrorIs(t, err, volume.ErrInUse)
			require.ErrorContains(t, err, "Run could not begin: "+errors.Unwrap(failure).Error())
			require.NotContains(t, err.Error(), "have not been read")
		}
	})
}

func TestDirectoryThatOthersMayWriteToIsRefused(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, withRecords(t))
		require.NoError(t, os.Mkdir(w.options.StateDir, 0o700))
		require.NoError(t, os.Chmod(w.options.StateDir, 0o770))
		err := w.prepare().Run(t.Context())
		require.ErrorIs(t, err, volume.ErrInvalid)
		require.ErrorContains(t, err, w.options.StateDir)
		require.NoError(t, os.Chmod(w.options.StateDir, 0o700))
		w.start()
	})
}

func TestDamagedRecordsAreReportedAndLeftAlone(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, withRecords(t))
		w.start()
		w.add(podOf("web", "-scratch"))
		require.NoError(t, w.stop())
		require.Len(t, w.records(), 1)
		log := logIn(w.options.RuntimeDir)
		content, err := os.ReadFile(log)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(log, content[:len(content)-7], 0o600))

		m := w.start()
		m.PodsComplete()
		pass(time.Hour)
		assert.Len(t, w.mounts(), 1, "what it stood for is not known")
		require.Len(t, m.Status().Damaged, 1)
		assert.FileExists(t, m.Status().Damaged[0].Path)
		require.Error(t, m.Status().Damaged[0].Err)
	})
}

func TestHostileRecordsLeadNowhere(t *testing.T) {
	cases := map[string]func(r map[string]any){
		"staging elsewhere": func(r map[string]any) { r["staging"] = map[string]any{"path": "/home"} },
		"staging by dots": func(r map[string]any) {
			r["staging"] = map[string]any{"path": testRoot + "/plugins/example.com/fake/../../../../../home"}
		},
		"staging of the root": func(r map[string]any) { r["staging"] = map[string]any{"path": testRoot + "/plugins/example.com/fake"} },
		"device relative":     func(r map[string]any) { r["staging"].(map[string]any)["devicePath"] = "dev/sda" },
		"pod outside": func(r map[string]any) {
			r["pods"].(map[string]any)["../../etc"] = r["pods"].(map[string]any)["uid-web"]
		},
		"set-up elsewhere":     func(r map[string]any) { r["pods"].(map[string]any)["uid-web"].(map[string]any)["path"] = "/etc" },
		"newer":                func(r map[string]any) { r["version"] = journal.Version + 1 },
		"something else in it": func(r map[string]any) { r["surprise"] = true },
		"other plugin":         func(r map[string]any) { r["plugin"] = "example.com/other" },
		"other volume":         func(r map[string]any) { r["volume"] = "example.com/fake/other" },
		"no spec":              func(r map[string]any) { delete(r, "spec") },
		"empty spec":           func(r map[string]any) { r["spec"] = map[string]any{} },
		"inner name with slash": func(r map[string]any) {
			r["spec"].(map[string]any)["persistentVolume"].(map[string]any)["metadata"] = map[string]any{"name": "../x"}
		},
		"other node": func(r map[string]any) { r["attachment"] = map[string]any{"node": "node-2"} },
	}
	for name, change := range cases {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				w := newWorld(t, Options{RuntimeDir: filepath.Join(t.TempDir(), "run")})
				w.claim("data")
				w.start()
				w.add(podOf("web", "data"))
				require.NoError(t, w.stop())
				rewriteRecord(t, w.options.RuntimeDir, change)

				m := w.start()
				m.PodsComplete()
				pass(time.Hour)
				assert.Empty(t, w.changes())
				assert.Len(t, w.mounts(), 2)
				require.Len(t, m.Status().Damaged, 1)
				assert.Empty(t, m.Status().Volumes)
			})
		})
	}
}

// rewriteRecord changes the only record of a directory and makes it whole again.
func rewriteRecord(t *testing.T, path string, change func(r map[string]any)) {
	t.Helper()
	dir, err := record.Open(path, record.Options{})
	require.NoError(t, err)
	records, _, err := dir.Load()
	require.NoError(t, err)
	require.Len(t, records, 1)
	var r map[string]any
	require.NoError(t, json.Unmarshal(records[0].Payload, &r))
	change(r)
	payload, err := json.Marshal(r)
	require.NoError(t, err)
	require.NoError(t, dir.Put(records[0].Key, payload))
	require.NoError(t, dir.Close())
}

func TestAfterAnotherBootAttachmentsAreUndoneAndDirectoriesRemoved(t *testing.T) {
	for _, wanted := range []bool{false, true} {
		inBubble(t, func(t *testing.T) {
			w := newWorld(t, withRecords(t))
			w.claim("data")
			pod := podOf("web", "data")
			w.start()
			w.add(pod)
			require.NoError(t, w.stop())
			// The reboot: no mount is left, the records say another boot, and the device of that name belongs to another volume.
			w.mounter = fake.NewMounter(fake.MounterOptions{})
			for _, dir := range []string{w.options.RuntimeDir, w.options.StateDir} {
				rewriteRecord(t, dir, func(r map[string]any) { r["bootID"] = "another" })
			}
			m := w.start()
			for _, v := range m.Status().Volumes {
				assert.Empty(t, v.DevicePath)
			}
			if wanted {
				w.add(pod)
				assert.Len(t, w.mounts(), 2)
				w.remove(pod)
			}
			m.PodsComplete()
			w.isClean()
		})
	}
}

func TestRecordsWithoutAStateDirMoveToOne(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, Options{RuntimeDir: filepath.Join(t.TempDir(), "run")})
		w.claim("data")
		pod := podOf("web", "data")
		w.start()
		w.add(pod)
		synctest.Wait()
		require.Len(t, w.records(), 1)
		require.NoError(t, w.stop())
		w.options.StateDir = filepath.Join(t.TempDir(), "state")
		m := w.start()
		w.add(pod)
		synctest.Wait()
		assert.Len(t, recordsIn(t, w.options.StateDir), 1)
		m.PodsComplete()
		w.remove(pod)
		w.isClean()
	})
}

func TestPluginThatIsGoneLeavesItsVolumesKnown(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, withRecords(t))
		w.claim("data")
		pod := podOf("web", "data")
		w.start()
		w.add(pod)
		require.NoError(t, w.stop())

		host, err := volume.NewHost(volume.HostOptions{RootDir: testRoot, NodeName: testNode})
		require.NoError(t, err)
		m, err := New(volume.NewVolumePluginMgr(host), w.options)
		require.NoError(t, err)
		w.manager = m
		w.run()
		m.PodsComplete()
		pass(time.Minute)
		status := m.PodStatus(pod.UID)
		require.Len(t, status, 1)
		require.ErrorIs(t, status[0].Err, volume.ErrNoPlugin)
		assert.Len(t, w.mounts(), 2)
		assert.NotEmpty(t, w.records())
	})
}

func TestRecordsHoldNoSecrets(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, withRecords(t))
		const secret = "hunter2"
		pod := podOf("web", "-scratch")
		pod.Spec.Volumes[0].CSI.VolumeAttributes = map[string]string{"dbPassword": secret, "size": "1Mi"}
		pod.Annotations = map[string]string{"note": secret}
		w.start()
		w.add(pod)
		synctest.Wait()
		content, err := os.ReadFile(logIn(w.options.RuntimeDir))
		require.NoError(t, err)
		assert.NotContains(t, string(content), secret)
		assert.Contains(t, string(content), "scratch")
	})
}

func TestNothingBeginsWithoutItsRecord(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Log("root writes into read-only directories, so the directory is replaced by nothing")
	}
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, withRecords(t))
		w.start()
		require.NoError(t, os.RemoveAll(w.options.RuntimeDir))
		pod := podOf("web", "-scratch")
		require.NoError(t, w.manager.AddPod(t.Context(), pod))
		synctest.Wait()
		assert.Empty(t, w.changes())
		require.ErrorIs(t, w.manager.PodStatus(pod.UID)[0].Err, volume.ErrTransient)
		assert.Empty(t, w.mounts())
	})
}

// What a restart found may be mounted, whatever the plugin says of a set-up that failed for good: it is torn down before it is
// forgotten, in the pod and on the node.
func TestWhatWasFoundIsTornDownAfterItsSetUpFailed(t *testing.T) {
	for _, method := range []fake.Method{fake.MethodSetUp, fake.MethodMountDevice} {
		t.Run(string(method), func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				w := newWorld(t, withRecords(t))
				w.claim("data")
				pod := podOf("web", "data")
				w.start()
				w.manager.PodsComplete()
				w.add(pod)
				require.NoError(t, w.stop())
				broken := errors.New("the filesystem is damaged")
				m := w.prepare()
				w.plugin.Inject(method, fake.FailN(-1, broken))
				w.run()
				require.NoError(t, m.AddPod(t.Context(), pod))
				m.PodsComplete()
				pass(time.Hour)
				require.ErrorIs(t, m.PodStatus(pod.UID)[0].Err, broken)
				assert.Len(t, w.mounts(), 2, "nothing was taken away for that")
				w.remove(pod)
				w.isClean()
			})
		})
	}
}
