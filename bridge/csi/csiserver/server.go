package csiserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"

	"github.com/volumekit/volumekit/bridge/csi/internal/csispec"
	"github.com/volumekit/volumekit/internal/unixsocket"
	"github.com/volumekit/volumekit/volume"
)

// ErrSocketInUse says that another process answers at the path of the socket.
var ErrSocketInUse = unixsocket.ErrInUse

// Server serves one plugin. Make it with [New].
type Server struct {
	options Options
	plugin  volume.VolumePlugin
	name    string // the driver's name
	host    *volume.Host
	logger  *slog.Logger
	calls   calls
}

// New returns a server of plugin. It does no I/O and starts nothing. Its error matches [volume.ErrInvalid] if an option is
// missing or cannot be used, or if the plugin's name does not correspond to a valid driver name.
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
		return nil, fmt.Errorf("csi server of plugin %q: the part after the slash has a dot, so no driver name corresponds to it: %w",
			plugin.GetPluginName(), volume.ErrInvalid)
	}
	return &Server{options: options, plugin: plugin, name: name, host: host, logger: options.Logger}, nil
}

// Run initialises the plugin, opens the records and serves until ctx ends. Then it accepts no new calls. Running calls
// have [Options].Grace to end; after that, Run cancels them and waits for Grace once more. It returns nil when all calls
// have ended, and otherwise an error that matches [volume.ErrUncertain] and names those that still run.
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
	services, err := s.services(ctx, plugin, records)
	if err != nil {
		return err
	}
	listener, err := unixsocket.Listen(ctx, s.options.Socket, s.options.SocketMode)
	if err != nil {
		if errors.Is(err, unixsocket.ErrUnsafe) {
			err = fmt.Errorf("%w: %w", volume.ErrInvalid, err)
		}
		return err
	}
	s.logger.Info("serving", "driver", s.name, "socket", s.options.Socket, "can", plugin.can.String())
	return s.serve(ctx, listener, services)
}

// services returns a gRPC server with the services of the options. They share the records and the locks.
func (s *Server) services(ctx context.Context, plugin *resolved, records *records) (*grpc.Server, error) {
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
		stagings := &stager{resolved: plugin, runtime: records.runtime, attachments: attachments}
		if err := stagings.findUnrecorded(ctx); err != nil {
			return nil, err
		}
		csi.RegisterNodeServer(server, &node{
			resolved: plugin, locks: locks, runtime: records.runtime, binds: binds,
			stagings:     stagings,
			publications: &publisher{resolved: plugin, runtime: records.runtime, binds: binds},
		})
	}
	return server, nil
}

func (s *Server) serve(ctx context.Context, listener *unixsocket.Listener, server *grpc.Server) error {
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }() // ends with Stop or GracefulStop
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	s.logger.Info("stopping", "calls", s.calls.String())
	err := s.stop(server)
	if served := <-ended; !errors.Is(served, grpc.ErrServerStopped) { // ErrServerStopped: stopped before it began to serve
		err = errors.Join(err, served)
	}
	return errors.Join(err, listener.Remove())
}

// stop waits for the running calls, then cancels them. It reports calls that run on after that.
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
