package csidriver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/volumekit/volumekit/bridge/csi/internal/registration"
	"github.com/volumekit/volumekit/volume"
)

// ErrTwoDrivers says that another socket serves a driver of the same name.
var ErrTwoDrivers = errors.New("a driver of that name is there already")

// ProberOptions configures a [Prober].
type ProberOptions struct {
	// Dir is the absolute directory of the sockets: those of drivers, and those of registrars, such as the sidecar
	// node-driver-registrar makes for kubelet. Required. It must exist.
	Dir string
	// Drivers are the options of each found driver, without Socket, Driver and Object.
	Drivers Options
	// Found is called with each driver before its plugin is added, for example to call [Driver.Register]. If it returns
	// an error, the driver is refused and retried later. Nil does nothing.
	Found func(ctx context.Context, d *Driver) error
}

// Prober finds CSI drivers by their sockets, for [volume.VolumePluginMgr.Probe] and a volume manager. A driver exists
// as long as its socket, or that of its registrar.
type Prober struct {
	options ProberOptions
	watch   *watch
	work    sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	sockets map[string]*socket // by path
	// attached are the facts of attachments by driver. A driver that starts again is another plugin, and must still detach
	// the volumes of the earlier one.
	attached map[string]*attachments
}

var _ volume.DynamicPluginProber = (*Prober)(nil)

// socket is one socket in the directory.
type socket struct {
	path string
	file os.FileInfo
	// identifying says that the driver's name is being read.
	identifying bool
	// driver and name are the identified driver; nil before that.
	driver   *Driver
	name     string
	reported bool // by Probe
	// gone says that the socket was removed while the driver's name was being read.
	gone bool
	// err is the reason why the driver is not used; failures counts the attempts, next is the time of the next one.
	err      error
	failures int
	next     time.Time
}

// NewProber returns a prober of a directory. Close it when the manager has ended.
func NewProber(options ProberOptions) (*Prober, error) {
	if !filepath.IsAbs(options.Dir) {
		return nil, fmt.Errorf("directory %q of CSI sockets: give an absolute path: %w", options.Dir, volume.ErrInvalid)
	}
	if options.Drivers.Object != nil || options.Drivers.Socket != "" || options.Drivers.Driver != "" {
		return nil, fmt.Errorf("prober of %q: Socket, Driver and Object are of one driver: leave them out (Objects is for all): %w", options.Dir, volume.ErrInvalid)
	}
	options.Drivers.Logger = cmp.Or(options.Drivers.Logger, slog.New(slog.DiscardHandler))
	options.Drivers.ConnectTimeout = cmp.Or(options.Drivers.ConnectTimeout, defaultConnectTimeout)
	w, err := newWatch(options.Dir)
	if err != nil {
		return nil, err
	}
	return &Prober{options: options, watch: w, sockets: map[string]*socket{}, attached: map[string]*attachments{}}, nil
}

// Close ends the connections to all drivers, and returns when no identification runs. Mounts stay.
func (p *Prober) Close() error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	err := p.watch.close()
	p.work.Wait()
	for _, s := range p.sockets {
		if s.driver != nil {
			err = errors.Join(err, s.driver.Close())
		}
	}
	return err
}

// Refused returns the refused drivers: the reasons by socket.
func (p *Prober) Refused() map[string]error {
	p.mu.Lock()
	defer p.mu.Unlock()
	refused := map[string]error{}
	for path, s := range p.sockets {
		if s.err != nil {
			refused[path] = s.err
		}
	}
	return refused
}

// Probe implements [volume.DynamicPluginProber]. It identifies drivers in parallel: one that does not answer delays no
// other. It retries a refused driver after a second, then after twice as long each time, up to a minute;
// [Prober.Refused] has the reasons.
func (p *Prober) Probe(ctx context.Context) ([]volume.ProbeEvent, error) {
	stop := context.AfterFunc(ctx, p.watch.wake)
	defer stop()
	for ctx.Err() == nil {
		if err := p.watch.until(p.nextRetry()); err != nil {
			return nil, err
		}
		events, err := p.scan(ctx)
		if len(events) > 0 || err != nil {
			return events, err
		}
		if ctx.Err() != nil {
			break
		}
		if err := p.watch.await(); err != nil {
			return nil, err
		}
	}
	return nil, ctx.Err()
}

// nextRetry returns the time of the next retry of a refused driver.
func (p *Prober) nextRetry() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	var next time.Time
	for _, s := range p.sockets {
		if s.err != nil && !s.identifying && (next.IsZero() || s.next.Before(next)) {
			next = s.next
		}
	}
	return next
}

// scan compares the directory with the known sockets, starts to identify new drivers, and returns the changes.
func (p *Prober) scan(ctx context.Context) ([]volume.ProbeEvent, error) {
	there, err := socketsIn(p.options.Dir)
	if err != nil {
		return nil, err
	}
	events, closing := p.compare(ctx, there)
	for _, d := range closing {
		_ = d.Close() // Its socket is gone.
	}
	return events, nil
}

// compare updates the known sockets. It returns the changes, and the drivers whose connections the caller closes.
func (p *Prober) compare(ctx context.Context, there map[string]os.FileInfo) (events []volume.ProbeEvent, closing []*Driver) {
	p.mu.Lock()
	defer p.mu.Unlock()
	events, closing = p.forgetGone(there)
	for path, info := range there {
		s := p.sockets[path]
		if s == nil {
			s = &socket{path: path, file: info}
			p.sockets[path] = s
		}
		if s.driver == nil && !s.identifying && !time.Now().Before(s.next) && !p.closed {
			s.identifying = true
			p.work.Go(func() { p.identify(ctx, s) })
		}
		if s.driver != nil && !s.reported {
			s.reported = true
			events = append(events, volume.ProbeEvent{Op: volume.ProbeAddOrUpdate, Plugin: p.pluginOf(s)})
		}
	}
	return events, closing
}

// pluginOf returns a plugin of a socket's driver, with the attachments of earlier ones. The caller holds the lock.
func (p *Prober) pluginOf(s *socket) *Plugin {
	plugin := s.driver.Plugin()
	if earlier := p.attached[s.name]; earlier != nil {
		plugin.attached = earlier
	}
	p.attached[s.name] = plugin.attached
	return plugin
}

// forgetGone forgets the sockets that were removed or replaced.
func (p *Prober) forgetGone(there map[string]os.FileInfo) (events []volume.ProbeEvent, closing []*Driver) {
	for path, s := range p.sockets {
		if now := there[path]; now != nil && os.SameFile(now, s.file) && now.ModTime().Equal(s.file.ModTime()) {
			continue
		}
		delete(p.sockets, path)
		s.gone = true
		if s.driver == nil {
			continue
		}
		closing = append(closing, s.driver)
		if s.reported {
			events = append(events, volume.ProbeEvent{Op: volume.ProbeRemove, PluginName: volume.PluginNameOfDriver(s.name)})
		}
	}
	return events, closing
}

func socketsIn(dir string) (map[string]os.FileInfo, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	there := map[string]os.FileInfo{}
	for _, entry := range entries {
		if entry.Type() != fs.ModeSocket {
			continue
		}
		info, err := entry.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		there[filepath.Join(dir, entry.Name())] = info
	}
	return there, nil
}

const (
	firstRetry = time.Second
	lastRetry  = time.Minute
)

// identify identifies the driver of a socket, and stores the result.
func (p *Prober) identify(ctx context.Context, s *socket) {
	defer p.watch.wake()
	driver, err := p.connectTo(ctx, s)
	if !p.keep(s, driver, err) && driver != nil {
		_ = driver.Close() // Its socket is gone.
	}
}

// keep stores the result of an identification. It returns false if the socket was removed meanwhile.
func (p *Prober) keep(s *socket, driver *Driver, err error) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	s.identifying, s.err = false, err
	if err != nil {
		s.next = time.Now().Add(min(firstRetry<<min(s.failures, 6), lastRetry))
		s.failures++
		p.options.Drivers.Logger.Warn("a CSI driver is not used", "socket", s.path, "error", err)
		return false
	}
	if s.gone || p.closed {
		return false
	}
	s.driver = driver
	p.options.Drivers.Logger.Info("a CSI driver was found", "driver", s.name, "socket", s.path)
	return true
}

// connectTo connects to the driver of a socket, and reports the result to its registrar, if there is one.
func (p *Prober) connectTo(ctx context.Context, s *socket) (*Driver, error) {
	ctx, cancel := context.WithTimeout(ctx, p.options.Drivers.ConnectTimeout)
	defer cancel()
	if err := checkSocket(s.path, p.options.Drivers.Owners); err != nil {
		return nil, err
	}
	conn, err := grpc.NewClient("unix:"+s.path, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy(),
		grpc.WithAuthority("localhost"), grpc.WithDisableServiceConfig(), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxRegistration)))
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	info, err := registration.GetInfo(ctx, conn)
	if status.Code(err) == codes.Unimplemented {
		return p.connectDriver(ctx, s, "", s.path)
	}
	if err != nil {
		return nil, fmt.Errorf("registrar at %q: %w", s.path, err)
	}
	driver, err := p.registered(ctx, s, info)
	notified := registration.Notify(ctx, conn, statusOf(err))
	if err == nil && notified != nil {
		return nil, errors.Join(fmt.Errorf("registrar at %q: %w", s.path, notified), driver.Close())
	}
	return driver, err
}

// maxRegistration is the largest size of a registrar's answer in bytes.
const maxRegistration = 64 << 10

func statusOf(err error) registration.Status {
	if err != nil {
		return registration.Status{Error: err.Error()}
	}
	return registration.Status{Registered: true}
}

// registered connects to the driver that a registrar names.
func (p *Prober) registered(ctx context.Context, s *socket, info registration.Info) (*Driver, error) {
	endpoint := cmp.Or(info.Endpoint, s.path)
	switch {
	case info.Type != registration.CSIPlugin:
		return nil, fmt.Errorf("registrar at %q: it registers a %q, and not a %s: %w", s.path, info.Type, registration.CSIPlugin, volume.ErrUnsupported)
	case !filepath.IsAbs(endpoint):
		return nil, fmt.Errorf("registrar at %q: endpoint %q: give an absolute path: %w", s.path, endpoint, volume.ErrInvalid)
	case !speaksFirst(info.Versions):
		return nil, fmt.Errorf("registrar at %q: versions %q: CSI 1 is spoken here: %w", s.path, info.Versions, volume.ErrUnsupported)
	}
	return p.connectDriver(ctx, s, info.Name, endpoint)
}

// speaksFirst reports whether one of the versions is CSI 1. For a registrar without versions it is true: the driver's
// own answer decides.
func speaksFirst(versions []string) bool {
	for _, version := range versions {
		if strings.HasPrefix(strings.TrimPrefix(version, "v"), "1.") {
			return true
		}
	}
	return len(versions) == 0
}

// connectDriver connects to a driver, and reads an unknown name from it.
func (p *Prober) connectDriver(ctx context.Context, s *socket, name, endpoint string) (*Driver, error) {
	options := p.options.Drivers
	options.Socket = endpoint
	if name == "" {
		var err error
		if name, err = Identify(ctx, options); err != nil {
			return nil, err
		}
	}
	if err := p.reserveName(s, name); err != nil {
		return nil, err
	}
	options.Driver = name
	driver, err := New(options)
	if err != nil {
		return nil, err
	}
	err = driver.Connect(ctx)
	if err == nil && p.options.Found != nil {
		err = p.options.Found(ctx, driver)
	}
	if err != nil {
		return nil, errors.Join(err, driver.Close())
	}
	return driver, nil
}

// reserveName records the name of a socket's driver, unless another socket has it.
func (p *Prober) reserveName(s *socket, name string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, other := range p.sockets {
		if other != s && other.name == name && (other.identifying || other.driver != nil) {
			return fmt.Errorf("driver %q at %q: it is at %q too, stop one of them: %w", name, s.path, other.path, ErrTwoDrivers)
		}
	}
	s.name = name
	return nil
}
