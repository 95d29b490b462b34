package csiserver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"

	"github.com/volumekit/volumekit/bridge/csi/internal/csispec"
	"github.com/volumekit/volumekit/volume"
)

// ErrSocketInUse says that another process answers at the path of the socket.
var ErrSocketInUse = errors.New("another process serves the socket")

// Server serves one plugin. Make it with [New].
type Server struct {
	options Options
	plugin  volume.VolumePlugin
	name    string // of the driver
	host    *volume.Host
	logger  *slog.Logger
	calls   calls
}

// New returns a server of plugin. It does no I/O and starts nothing. An option that is missing or not usable is an error that
// matches [volume.ErrInvalid], and so is a plugin whose name no driver can have.
func New(plugin volume.VolumePlugin, options Options) (*Server, error) {
	options = options.withDefaults()
	if plugin == nil {
		return nil, fmt.Errorf("csi server: the plugin is nil: %w", volume.ErrInvalid)
	}
	host, err := volume.NewHost(volume.HostOptions{RootDir: options.RootDir, NodeName: options.NodeName})
	name := volume.DriverOfPluginName(plugin.GetPluginName())
	if err := errors.Join(err, options.check(), csispec.CheckDriverName(name)); err != nil {
		return nil, fmt.Errorf("csi server of plugin %q: %w", plugin.GetPluginName(), err)
	}
	if volume.PluginNameOfDriver(name) != plugin.GetPluginName() {
		return nil, fmt.Errorf("csi server of plugin %q: what follows the slash has a dot, which no driver's name can show: %w",
			plugin.GetPluginName(), volume.ErrInvalid)
	}
	return &Server{options: options, plugin: plugin, name: name, host: host, logger: options.Logger}, nil
}

// Run initialises the plugin, opens the records and serves until ctx ends. Then no call is begun any more; those that are under
// way have [Options].Grace to end, and are cancelled after it. Run returns nil when all have ended, and an error that names
// those that have not.
func (s *Server) Run(ctx context.Context) error {
	if err := s.run(ctx); err != nil {
		return fmt.Errorf("csi server of plugin %q: %w", s.plugin.GetPluginName(), err)
	}
	return nil
}

func (s *Server) run(ctx context.Context) (err error) {
	plugin, err := s.resolve(ctx)
	if err != nil {
		return err
	}
	records, err := openRecords(s.options)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, records.close()) }()
	listener, err := listen(ctx, s.options.Socket, s.options.SocketMode)
	if err != nil {
		return err
	}
	s.logger.Info("serving", "driver", s.name, "socket", s.options.Socket, "can", plugin.can.String())
	return s.serve(ctx, listener, s.services(plugin, records))
}

// services returns what serves: of each service a value of its own, over what they share.
func (s *Server) services(plugin *resolved, records *records) *grpc.Server {
	around := &interceptor{calls: &s.calls, plugin: plugin.plugin.GetPluginName(), timeout: s.options.CallTimeout, logger: s.logger}
	server := grpc.NewServer(
		grpc.MaxRecvMsgSize(maxRequest), grpc.MaxConcurrentStreams(maxCalls), grpc.UnaryInterceptor(around.intercept))
	locks := &locks{logger: s.logger}
	attachments := &attachments{resolved: plugin, records: records}
	csi.RegisterIdentityServer(server, &identity{resolved: plugin})
	if s.options.hasController() {
		snapshots := &snapshots{resolved: plugin, locks: locks, state: records.state}
		csi.RegisterControllerServer(server, &controller{
			resolved: plugin, snapshots: snapshots, locks: locks, state: records.state,
			volumes: &volumes{resolved: plugin, records: records, snapshots: snapshots}, attachments: attachments,
		})
		csi.RegisterGroupControllerServer(server, &groupController{resolved: plugin, snapshots: snapshots, locks: locks, state: records.state})
	}
	if s.options.hasNode() {
		binds := &binder{mounter: plugin.mounter}
		csi.RegisterNodeServer(server, &node{
			resolved: plugin, locks: locks, runtime: records.runtime, binds: binds,
			stagings:     &stager{resolved: plugin, runtime: records.runtime, attachments: attachments},
			publications: &publisher{resolved: plugin, runtime: records.runtime, binds: binds},
		})
	}
	return server
}

func (s *Server) serve(ctx context.Context, listener *socket, server *grpc.Server) error {
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }() // ends with Stop or GracefulStop
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	s.logger.Info("stopping", "calls", s.calls.String())
	err := s.stop(server)
	if served := <-ended; !errors.Is(served, grpc.ErrServerStopped) { // It was stopped before it began.
		err = errors.Join(err, served)
	}
	return errors.Join(err, listener.remove())
}

// stop waits for the calls that are under way, then cancels them.
func (s *Server) stop(server *grpc.Server) error {
	graceful := make(chan struct{})
	go func() { // ends with Stop, at the latest
		defer close(graceful)
		server.GracefulStop()
	}()
	if waitFor(graceful, s.options.Grace) {
		return nil
	}
	server.Stop()
	<-graceful
	all := make(chan struct{})
	go func() { // ends with the last call
		defer close(all)
		s.calls.all.Wait()
	}()
	if waitFor(all, s.options.Grace) {
		return nil
	}
	return fmt.Errorf("calls have not ended: %s: %w", s.calls.String(), volume.ErrUncertain)
}

func waitFor(done <-chan struct{}, limit time.Duration) bool {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return false
	}
}

// socket is a listener whose socket is removed by its owner, and by nobody else.
type socket struct {
	*net.UnixListener
	path string
	made fs.FileInfo
}

// listen makes a socket that has its permissions before anybody can connect, in the place of one that a killed process has left.
func listen(ctx context.Context, path string, mode fs.FileMode) (*socket, error) {
	if err := os.Mkdir(filepath.Dir(path), 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("directory of the socket: %w", err)
	}
	if err := checkFree(ctx, path); err != nil {
		return nil, err
	}
	early, err := privateDir(path)
	if err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(early, "s"), Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	listener.SetUnlinkOnClose(false)
	made, err := publish(filepath.Join(early, "s"), path, mode)
	if err != nil {
		return nil, fmt.Errorf("socket: %w", errors.Join(err, listener.Close()))
	}
	return &socket{UnixListener: listener, path: path, made: made}, os.Remove(early)
}

// privateDir makes an empty directory beside the socket that nobody else can look into. A killed process may have left one.
func privateDir(path string) (string, error) {
	dir := path + privateSuffix
	if err := os.Remove(filepath.Join(dir, "s")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	return dir, os.Mkdir(dir, 0o700)
}

// publish gives the socket its permissions and its name.
func publish(early, path string, mode fs.FileMode) (fs.FileInfo, error) {
	if err := os.Chmod(early, mode); err != nil {
		return nil, err
	}
	made, err := os.Lstat(early)
	if err != nil {
		return nil, err
	}
	return made, os.Rename(early, path)
}

// checkFree refuses a directory in which others can put a socket of their own, a path at which there is something else, and a
// socket at which somebody answers.
func checkFree(ctx context.Context, path string) error {
	dir, err := os.Stat(filepath.Dir(path))
	if err != nil {
		return fmt.Errorf("directory of the socket: %w", err)
	}
	owner, known := dir.Sys().(*syscall.Stat_t)
	if dir.Mode()&0o022 != 0 || !known || (owner.Uid != 0 && int(owner.Uid) != os.Geteuid()) {
		return fmt.Errorf("others can write to the directory of the socket %q: give it mode 0755 or less, and to root or this user: %w",
			path, volume.ErrInvalid)
	}
	there, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case there.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("%q is there and no socket: remove it if you know what it is: %w", path, volume.ErrInvalid)
	}
	var dialer net.Dialer
	if connection, err := dialer.DialContext(ctx, "unix", path); err == nil {
		return errors.Join(fmt.Errorf("%q: %w", path, ErrSocketInUse), connection.Close())
	}
	return nil // a process that is gone has left it
}

// remove removes the socket, unless another server has replaced it.
func (s *socket) remove() error {
	there, err := os.Lstat(s.path)
	if errors.Is(err, fs.ErrNotExist) || (err == nil && !os.SameFile(there, s.made)) {
		return nil
	}
	if err != nil {
		return err
	}
	return os.Remove(s.path)
}
