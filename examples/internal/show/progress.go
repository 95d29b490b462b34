package show

import (
	"fmt"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager"
)

// Progress prints the operations of each volume. It is the agent's Observer and EventRecorder.
type Progress struct {
	// Status returns the manager's status. It must be set before the first operation.
	Status func() volumemanager.NodeStatus
	out    *Output

	mu    sync.Mutex
	names map[v1.UniqueVolumeName]string // the name in a pod's spec, by the volume's unique name
	ready map[mounting]time.Time         // when a volume was set up for a pod
}

// mounting is one volume of one pod.
type mounting struct {
	pod    volume.UniquePodName
	volume v1.UniqueVolumeName
}

var (
	_ operationexecutor.Observer = (*Progress)(nil)
	_ volume.EventRecorder       = (*Progress)(nil)
)

// NewProgress returns a Progress without volumes. Set its Status before the first operation.
func NewProgress(out *Output) *Progress {
	return &Progress{out: out, names: make(map[v1.UniqueVolumeName]string), ready: make(map[mounting]time.Time)}
}

// verbs maps each kind of operation to a verb.
var verbs = map[operationexecutor.OperationKind]struct{ doing, done string }{
	operationexecutor.OpAttach:        {"attaching", "attached"},
	operationexecutor.OpDetach:        {"detaching", "detached"},
	operationexecutor.OpMount:         {"mounting", "mounted"},
	operationexecutor.OpUnmount:       {"unmounting", "unmounted"},
	operationexecutor.OpUnmountDevice: {"unstaging", "unstaged"},
}

// OperationStarted implements operationexecutor.Observer.
func (p *Progress) OperationStarted(o operationexecutor.OperationInfo) {
	p.line(o, verbs[o.Kind].doing+" ...")
}

// OperationStepped implements operationexecutor.Observer. It prints only the steps that make a volume usable. A pod may
// be ready before the operation has ended.
func (p *Progress) OperationStepped(o operationexecutor.OperationInfo, s operationexecutor.Step) {
	switch {
	case s.Err != nil: // OperationFinished prints it
	case s.Name == "MountDevice":
		p.line(o, "staged in "+millis(s.Duration))
	case s.Name == "SetUp":
		p.line(o, "mounted in "+millis(time.Since(o.Started)))
		p.mu.Lock()
		defer p.mu.Unlock()
		p.ready[mounting{o.PodName, o.VolumeName}] = time.Now()
	}
}

// OperationFinished implements operationexecutor.Observer.
func (p *Progress) OperationFinished(o operationexecutor.OperationInfo, r operationexecutor.Result) {
	verb := verbs[o.Kind]
	switch {
	case r.Class != operationexecutor.Done:
		p.line(o, oneLine(fmt.Sprintf("%s failed (%s): %v", verb.doing, r.Class, r.Err)))
	case o.Kind != operationexecutor.OpMount: // OperationStepped has printed it
		p.line(o, fmt.Sprintf("%s in %s", verb.done, millis(time.Since(o.Started))))
	}
}

// Eventf implements volume.EventRecorder. It prints only events of claims: the operations cover the rest.
func (p *Progress) Eventf(object runtime.Object, _, reason, format string, args ...any) {
	if claim, ok := object.(*v1.PersistentVolumeClaim); ok {
		p.out.Say("  %-12s %-12s %s: %s", claim.Name, "claim", reason, fmt.Sprintf(format, args...))
	}
}

func (p *Progress) line(o operationexecutor.OperationInfo, what string) {
	plugin, _, err := volume.SplitUniqueName(o.VolumeName)
	if err != nil {
		plugin = o.PluginName
	}
	p.out.Say("  %-12s %-12s %s", p.name(o.VolumeName), shortPlugin(plugin), what)
}

// name returns a volume's name for people: its name in a pod's spec, if that is known.
func (p *Progress) name(unique v1.UniqueVolumeName) string {
	p.mu.Lock()
	name, ok := p.names[unique]
	p.mu.Unlock()
	if ok {
		return name
	}
	for _, v := range p.Status().Volumes {
		if v.Volume == unique && v.OuterName != "" {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.names[unique] = v.OuterName
			return v.OuterName
		}
	}
	return string(unique)
}

// ReadyAt returns when a volume was set up for a pod; zero if it was not.
func (p *Progress) ReadyAt(pod volume.UniquePodName, name v1.UniqueVolumeName) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ready[mounting{pod, name}]
}

// shortPlugin returns a plugin's name without its domain.
func shortPlugin(name string) string { return name[strings.LastIndexByte(name, '/')+1:] }

func millis(d time.Duration) string {
	return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond))
}
