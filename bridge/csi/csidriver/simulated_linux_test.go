package csidriver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/volumekit/volumekit/bridge/csi/internal/fakedriver"
	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/mount"
)

// theSecret is in every secret of a simulated world, and in what its driver says when it fails.
const theSecret = "hunter2-hunter2"

// simulatedDriver is a driver whose requests and answers are late, lost and repeated, as the seed has it. It does one call at a time for
// a volume and answers ABORTED to a second one, as the specification recommends. Before each call takes its effect the rules are checked.
type simulatedDriver struct {
	*fakedriver.Driver

	seed             uint64
	often            int  // one of so many calls goes wrong
	attaches, stages bool // by its capabilities

	running sync.WaitGroup // calls, which go on after their callers have left

	mu     sync.Mutex
	healed bool
	life   *driverLife
	nth    map[string]int // how often a call came
	wires  []*wire
	trace  []string
	broken []string // rules
}

// driverLife is what a driver forgets when it is killed.
type driverLife struct{ busy map[string]bool }

func newSimulatedDriver(options fakedriver.Options, seed uint64, often int) *simulatedDriver {
	return &simulatedDriver{
		Driver: fakedriver.New(options), seed: seed, often: often,
		attaches: slices.Contains(options.Controller, csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME),
		stages:   slices.Contains(options.Node, csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME),
		life:     &driverLife{busy: map[string]bool{}}, nth: map[string]int{},
	}
}

// fate is what becomes of one call. The zero value goes well.
type fate struct {
	delay time.Duration // in the driver, with the volume locked
	// before and after are the codes of a failure without and with the effect.
	before, after codes.Code
	// noRequest and noAnswer say what is lost, silent that the connection stays and the caller waits.
	noRequest, noAnswer, silent bool
	twice                       bool
	// lies says that the driver answers what the mount table contradicts.
	lies bool
}

// Codes of failures, and those that say that there was no effect.
var (
	vague   = []codes.Code{codes.Internal, codes.Unknown, codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.ResourceExhausted}
	certain = []codes.Code{codes.InvalidArgument, codes.Aborted, codes.PermissionDenied}
	// No delay is that of a deadline, or it would be open which comes first.
	delays = []time.Duration{time.Millisecond, 1100 * time.Millisecond, 13 * time.Second, 67 * time.Second, 307 * time.Second}
)

// fateOf decides by the seed, the call and how often it came, so that the order of calls for different volumes does not matter.
func (d *simulatedDriver) fateOf(call string) fate {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.nth[call]++
	if d.healed {
		return fate{}
	}
	hash := fnv.New64a()
	_, _ = fmt.Fprintf(hash, "%s %d", call, d.nth[call])
	random := rand.New(rand.NewPCG(d.seed, hash.Sum64())) //nolint:gosec // It decides tests alone.
	if random.IntN(d.often) != 0 {
		return fate{}
	}
	f := fate{delay: delays[random.IntN(len(delays))]}
	switch random.IntN(6) {
	case 0:
		f.before = append(slices.Clone(vague), certain...)[random.IntN(len(vague)+len(certain))]
	case 1:
		f.after = vague[random.IntN(len(vague))]
	case 2:
		f.noRequest, f.silent = true, random.IntN(2) == 0
	case 3:
		f.noAnswer, f.silent = true, random.IntN(2) == 0
	case 4:
		f.twice = true
	case 5:
		f.lies = d.seed%3 == 0
	}
	return f
}

// wire is one connection to the driver.
type wire struct {
	driver *simulatedDriver
	once   sync.Once
	cut    chan struct{}
}

// dial makes a connection.
func (d *simulatedDriver) dial(Options) (connection, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	w := &wire{driver: d, cut: make(chan struct{})}
	d.wires = append(d.wires, w)
	return w, nil
}

var errCut = status.Error(codes.Unavailable, "the connection was cut")

// Invoke implements grpc.ClientConnInterface.
func (w *wire) Invoke(ctx context.Context, method string, request, answer any, _ ...grpc.CallOption) error {
	if w.GetState() != connectivity.Ready {
		return errCut
	}
	message := request.(proto.Message)
	err := w.send(ctx, method, message, answer.(proto.Message))
	if status.Code(err) == codes.Unavailable { // All calls on the wire learn of that at once: each goes on in its turn.
		time.Sleep(turnOf(path.Base(method) + " " + placeOf(message)))
	}
	return err
}

// longestTurn bounds the times by which what would begin at once begins one after the other.
const longestTurn = 50 * time.Microsecond

// turnOf is another short time for each call or operation.
func turnOf(call string) time.Duration {
	hash := fnv.New64a()
	_, _ = hash.Write([]byte(call))
	return time.Duration(hash.Sum64() % uint64(longestTurn)) //nolint:gosec // It fits.
}

// send sends a request, and returns when its answer comes, the context ends or the connection is cut.
func (w *wire) send(ctx context.Context, method string, message, answer proto.Message) error {
	f := w.driver.fateOf(path.Base(method) + " " + placeOf(message))
	if f != (fate{}) {
		w.driver.note("%s %s: %+v", path.Base(method), placeOf(message), f)
	}
	ended := make(chan error, 1)
	if !f.noRequest {
		got := answer.ProtoReflect().New().Interface()
		w.driver.running.Go(func() { ended <- w.driver.carryOut(context.WithoutCancel(ctx), method, message, got, f) })
		select {
		case err := <-ended:
			if !f.noAnswer {
				proto.Merge(answer, got)
				return err
			}
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		case <-w.cut:
			return errCut
		}
	}
	if !f.silent {
		_ = w.Close()
	}
	select {
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	case <-w.cut:
		return errCut
	}
}

// NewStream implements grpc.ClientConnInterface.
func (*wire) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, errors.ErrUnsupported
}

// GetState implements connection.
func (w *wire) GetState() connectivity.State {
	select {
	case <-w.cut:
		return connectivity.Shutdown
	default:
		return connectivity.Ready
	}
}

// Close implements connection.
func (w *wire) Close() error {
	w.once.Do(func() { close(w.cut) })
	return nil
}

// cutAll ends every connection.
func (d *simulatedDriver) cutAll() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, w := range d.wires {
		_ = w.Close()
	}
	d.wires = nil
}

// restart kills the driver and starts it: calls that wait in it have no effect.
func (d *simulatedDriver) restart() {
	d.cutAll()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.life = &driverLife{busy: map[string]bool{}}
}

func (d *simulatedDriver) heal() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.healed = true
}

// idOf returns the volume of a request that changes one.
func idOf(request proto.Message) string {
	of, ok := request.(interface{ GetVolumeId() string })
	if !ok {
		return ""
	}
	return of.GetVolumeId()
}

// placeOf tells the calls of one volume and one pod from others.
func placeOf(request proto.Message) string {
	place := idOf(request)
	if at, ok := request.(interface{ GetTargetPath() string }); ok {
		place += " " + filepath.Base(filepath.Dir(filepath.Dir(filepath.Dir(at.GetTargetPath()))))
	}
	return place
}

// carryOut is what the driver does with a request.
func (d *simulatedDriver) carryOut(ctx context.Context, method string, request, answer proto.Message, f fate) error {
	id := idOf(request)
	if slices.Contains(certain, f.before) {
		return failure(f.before, request) // A driver looks at the request before it looks at the volume, which may be busy.
	}
	life, ok := d.begin(id)
	if !ok {
		return status.Error(codes.Aborted, "an operation is pending for the volume")
	}
	defer d.end(life, id)
	time.Sleep(f.delay)
	if !d.lives(life) {
		return errCut
	}
	if f.before != codes.OK {
		return failure(f.before, request)
	}
	if f.lies && canLie(request) {
		return nil
	}
	d.judge(request)
	err := d.Connection().Invoke(ctx, method, request, answer)
	if _, stages := request.(*csi.NodeStageVolumeRequest); stages && f.lies {
		return failure(codes.InvalidArgument, request)
	}
	if f.twice {
		again := answer.ProtoReflect().New().Interface()
		err = d.Connection().Invoke(ctx, method, request, again)
	}
	if err == nil && f.after != codes.OK {
		return failure(f.after, request)
	}
	return err
}

// canLie reports whether a success without an effect shows in the mount table.
func canLie(request proto.Message) bool {
	switch request.(type) {
	case *csi.NodePublishVolumeRequest, *csi.NodeUnpublishVolumeRequest, *csi.NodeUnstageVolumeRequest:
		return true
	}
	return false
}

// failure is an error whose text has the secrets of the request, as those of careless drivers do.
func failure(code codes.Code, request proto.Message) error {
	if r, ok := request.(interface{ GetSecrets() map[string]string }); ok {
		return status.Errorf(code, "the server refused %v", r.GetSecrets())
	}
	return status.Error(code, "the server failed")
}

func (d *simulatedDriver) begin(id string) (*driverLife, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.life.busy[id] {
		return nil, false
	}
	d.life.busy[id] = id != ""
	return d.life, true
}

func (d *simulatedDriver) end(life *driverLife, id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(life.busy, id)
}

func (d *simulatedDriver) lives(life *driverLife) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.life == life
}

// judge checks the rules for a call that is about to take its effect.
func (d *simulatedDriver) judge(request proto.Message) {
	id := idOf(request)
	if id == "" {
		return
	}
	all := d.Volumes()
	i := slices.IndexFunc(all, func(v fakedriver.Volume) bool { return v.ID == id })
	if i < 0 {
		d.breaks("volume %q is not there, and %T comes", id, request)
		return
	}
	v := all[i]
	d.note("%s %s takes effect", request.ProtoReflect().Descriptor().Name(), placeOf(request))
	switch r := request.(type) {
	case *csi.NodeStageVolumeRequest:
		d.mustBeAttached(v, r.GetPublishContext(), "staged")
		d.mustHaveSecret(r.GetSecrets())
		if len(v.Staged) > 0 && !slices.Contains(v.Staged, r.GetStagingTargetPath()) {
			d.breaks("volume %q is staged at %q, and is to be staged at %q", id, v.Staged, r.GetStagingTargetPath())
		}
	case *csi.NodePublishVolumeRequest:
		d.mustBeAttached(v, r.GetPublishContext(), "published")
		d.mustHaveSecret(r.GetSecrets())
		if d.stages && !slices.Contains(v.Staged, r.GetStagingTargetPath()) {
			d.breaks("volume %q is published and not staged at %q", id, r.GetStagingTargetPath())
		}
	case *csi.NodeUnstageVolumeRequest:
		if len(v.Published) > 0 {
			d.breaks("volume %q is unstaged, and pods have it at %q", id, v.Published)
		}
	case *csi.ControllerPublishVolumeRequest:
		d.mustHaveSecret(r.GetSecrets())
	case *csi.ControllerUnpublishVolumeRequest:
		if len(v.Staged)+len(v.Published) > 0 {
			d.breaks("volume %q is detached, and is staged at %q and published at %q", id, v.Staged, v.Published)
		}
	}
}

func (d *simulatedDriver) mustBeAttached(v fakedriver.Volume, publish map[string]string, what string) {
	if d.attaches && (len(v.Nodes) == 0 || publish["node"] != v.Nodes[0]) {
		d.breaks("volume %q is %s with publish context %v, and is attached to %q", v.ID, what, publish, v.Nodes)
	}
}

func (d *simulatedDriver) mustHaveSecret(secrets map[string]string) {
	if secrets["key"] != theSecret {
		d.breaks("a call comes without its secret")
	}
}

// breaks notes that a rule is broken.
func (d *simulatedDriver) breaks(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.broken = append(d.broken, fmt.Sprintf(format, args...))
}

func (d *simulatedDriver) note(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.trace = append(d.trace, time.Now().Format("15:04:05 ")+fmt.Sprintf(format, args...))
}

// verdict returns the rules that are broken.
func (d *simulatedDriver) verdict() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.broken)
}

// simulatedMounter has its mounts in memory, and its directories in memory and on the disk.
type simulatedMounter struct{ *fake.Mounter }

func (m simulatedMounter) Mount(ctx context.Context, request mount.Request) error {
	if err := errors.Join(m.MkdirAll(request.Source, 0o755), os.MkdirAll(request.Target, 0o750)); err != nil {
		return err
	}
	return m.Mounter.Mount(ctx, request)
}

func (m simulatedMounter) RemoveTarget(ctx context.Context, target string) error {
	if err := m.Mounter.RemoveTarget(ctx, target); err != nil {
		return err
	}
	if err := os.Remove(target); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// mortal is the mounter of an agent, which changes nothing when the agent was killed.
type mortal struct {
	simulatedMounter

	dead *atomic.Bool
}

func (m mortal) RemoveTarget(ctx context.Context, target string) error {
	if m.dead.Load() {
		return errors.New("the agent was killed")
	}
	return m.simulatedMounter.RemoveTarget(ctx, target)
}

// notes is a log in memory.
type notes struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (n *notes) Write(line []byte) (int, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.text.Write(line)
}

// reset forgets what was written.
func (n *notes) reset() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.text.Reset()
}

func (n *notes) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(n, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

func (n *notes) tell(text string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return strings.Contains(n.text.String(), text)
}
