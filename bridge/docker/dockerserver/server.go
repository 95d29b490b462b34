package dockerserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"time"

	"github.com/volumekit/volumekit/internal/abandonable"
	"github.com/volumekit/volumekit/internal/unixsocket"
	"github.com/volumekit/volumekit/volume"
)

// ErrSocketInUse says that another process listens on the socket.
var ErrSocketInUse = unixsocket.ErrInUse

// errStuck matches the error of a call that is refused because of an abandoned one.
var errStuck = errors.New("an earlier call of the plugin has not returned")

// Server serves one plugin. Make it with [New].
type Server struct {
	options Options
	plugin  volume.VolumePlugin
	host    *volume.Host
	logger  *slog.Logger
}

// New returns a server of plugin. It does no I/O and starts no goroutine. The error for a missing or invalid option
// matches [volume.ErrInvalid].
func New(plugin volume.VolumePlugin, options Options) (*Server, error) {
	options = options.withDefaults()
	if plugin == nil {
		return nil, fmt.Errorf("docker server: the plugin is nil: %w", volume.ErrInvalid)
	}
	host, err := volume.NewHost(volume.HostOptions{RootDir: options.RootDir, NodeName: options.NodeName})
	if err := errors.Join(err, options.check()); err != nil {
		return nil, fmt.Errorf("docker server of plugin %q: %w", plugin.GetPluginName(), err)
	}
	return &Server{options: options, plugin: plugin, host: host, logger: options.Logger}, nil
}

// Run initialises the plugin, reads the records, takes over the volumes of an earlier server, and serves until ctx
// ends. Then running calls have [Options].Grace to end. Volumes in use stay mounted. Run may be called once.
func (s *Server) Run(ctx context.Context) error {
	if err := s.run(ctx); err != nil {
		return fmt.Errorf("docker server of plugin %q: %w", s.plugin.GetPluginName(), err)
	}
	return nil
}

func (s *Server) run(ctx context.Context) (err error) {
	plugins := volume.NewVolumePluginMgr(s.host)
	if err := plugins.InitPlugins(ctx, s.plugin); err != nil {
		return err
	}
	records, err := openRecords(s.options)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, records.close()) }()
	node, err := newNode(plugins, s.options, filepath.Join(s.options.RuntimeDir, nodeDir), filepath.Join(s.options.StateDir, nodeDir)) //nolint:contextcheck // its observer asks without waiting
	if err != nil {
		return err
	}
	volumes := &volumes{
		options: s.options, plugin: s.plugin, host: s.host, can: plugins.Capabilities(s.plugin.GetPluginName()), records: records, node: node,
		logger: s.logger, calls: abandonable.New(abandonable.Options{Logger: s.logger, Stuck: errStuck}),
	}
	if err := volumes.resume(ctx); err != nil {
		return err
	}
	ended := make(chan error, 1)
	// The manager outlives ctx, because running calls need it; stop ends it.
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	go func() { ended <- node.manager.Run(running) }()
	err = s.serve(ctx, volumes, ended)
	grace, done := context.WithTimeout(running, s.options.Grace)
	defer done()
	err = errors.Join(err, node.manager.Stop(grace))
	cancel()
	return errors.Join(err, <-ended)
}

// resume adds the recorded volumes, and the pods of those in use, to the manager.
func (s *volumes) resume(ctx context.Context) error {
	for _, v := range s.records.volumes.All() {
		_, used := s.records.uses.Get(v.Name)
		switch v.Step {
		case making:
			s.logger.Warn("a volume may have been made in part: create it again", "volume", v.Name)
			continue
		case made:
		case deleting:
			s.logger.Warn("a volume may have been removed in part: remove it again", "volume", v.Name)
		}
		if err := s.node.know(ctx, v); err != nil {
			return err
		}
		if !used {
			var err error
			if used, err = s.recordUnrecorded(v); err != nil {
				return err
			}
		}
		if used {
			if err := s.node.want(ctx, v); err != nil {
				return fmt.Errorf("volume %s is in use: %w", volume.Quote(v.Name), err)
			}
		}
	}
	s.node.manager.PodsComplete()
	return nil
}

// unrecordedUse is the id of a use whose record is lost. Docker's ids are hexadecimal.
const unrecordedUse = "unrecorded"

// recordUnrecorded records a use of a volume that has none on record, but is mounted here and in another mount namespace: RuntimeDir is
// lost, and a container still has the volume. The use ends with Remove, once no container has the volume.
func (s *volumes) recordUnrecorded(v volumeRecord) (used bool, err error) {
	uid, name := podOf(v).UID, v.spec().Name()
	path := s.host.GetPodVolumeDir(uid, s.plugin.GetPluginName(), name)
	if unmounter, err := s.plugin.NewUnmounter(name, uid); err == nil && isBeneath(path, unmounter.GetPath()) {
		path = unmounter.GetPath() // a directory in it, of some plugins
	}
	what, err := dirShownBy(path)
	if err != nil || what == (filesystemDir{}) {
		return false, err
	}
	elsewhere := unusedElsewhere(path, "")
	if elsewhere == nil {
		return false, nil
	}
	s.logger.Warn("a volume is in use and not on record: it stays mounted until it is removed", "volume", v.Name, "path", path, "error", elsewhere)
	if err := s.records.addUse(v.Name, unrecordedUse); err != nil {
		return false, err
	}
	return true, s.records.setPath(v.Name, path, what.String())
}

// serve answers calls until ctx or the manager ends.
func (s *Server) serve(ctx context.Context, volumes *volumes, managerEnded chan error) error {
	listener, err := unixsocket.Listen(ctx, s.options.Socket, s.options.SocketMode)
	if errors.Is(err, unixsocket.ErrUnsafe) {
		err = fmt.Errorf("%w: %w", volume.ErrInvalid, err)
	}
	if err != nil {
		return err
	}
	server := &http.Server{
		Handler:           newHandler(volumes, s.options, s.logger),
		ReadHeaderTimeout: 10 * time.Second, ReadTimeout: time.Minute, IdleTimeout: time.Hour, MaxHeaderBytes: maxRequest,
		ErrorLog: slog.NewLogLogger(s.logger.Handler(), slog.LevelWarn),
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }() // ends with Shutdown or Close
	s.logger.Info("serving", "plugin", s.plugin.GetPluginName(), "socket", s.options.Socket)
	select {
	case err = <-managerEnded:
		managerEnded <- nil
	case err := <-ended:
		return errors.Join(err, listener.Remove())
	case <-ctx.Done():
	}
	grace, done := context.WithTimeout(context.WithoutCancel(ctx), s.options.Grace)
	defer done()
	stopped := server.Shutdown(grace)
	if stopped != nil {
		stopped = errors.Join(fmt.Errorf("calls have not ended: %w", stopped), server.Close())
	}
	if served := <-ended; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	return errors.Join(err, stopped, listener.Remove())
}
