package dockerserver

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/bridge/docker/internal/protocol"
	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/internal/abandonable"
	"github.com/volumekit/volumekit/internal/record"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager"
)

// FuzzRequests has any bytes as the requests of any calls. Each is answered with JSON, an error or not, no name or id that is
// accepted leaves its directory, and what was accepted is on record.
func FuzzRequests(f *testing.F) {
	paths := []string{
		protocol.Create, protocol.Mount, protocol.Unmount, protocol.Remove, protocol.Path, protocol.Get, protocol.List,
		protocol.Capabilities, protocol.Activate, "/VolumeDriver.None",
	}
	f.Add([]byte("\x00{\"Name\":\"v\",\"Opts\":{\"a\":\"b\"}}\n\x06\n\x05{\"Name\":\"v\"}"))
	f.Fuzz(func(t *testing.T, script []byte) {
		if len(script) > 4096 {
			return
		}
		dir := t.TempDir()
		o := Options{
			Socket: filepath.Join(dir, "s"), RootDir: filepath.Join(dir, "root"), StateDir: filepath.Join(dir, "state"),
			RuntimeDir: filepath.Join(dir, "run"), NodeName: "node-1",
			CallTimeout: 5 * time.Millisecond, // no manager runs: a Mount waits in vain
		}.withDefaults()
		v := fuzzedVolumes(t, o)
		handler := newHandler(v, o, o.Logger)
		for step := range bytes.SplitSeq(script, []byte("\n")) {
			if len(step) == 0 {
				continue
			}
			path := paths[int(step[0])%len(paths)]
			answer := httptest.NewRecorder()
			handler.ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, bytes.NewReader(step[1:])))
			if path != "/VolumeDriver.None" {
				require.True(t, json.Valid(answer.Body.Bytes()), "%s: %s", path, answer.Body)
			}
		}
		for _, row := range v.records.volumes.All() {
			require.NoError(t, volume.CheckPathElement(row.Name))
			require.NoError(t, volume.CheckPathElement(element(row.Name)))
			require.False(t, strings.HasPrefix(row.Name, "."))
			listed, err := v.list(t.Context(), protocol.Nothing{})
			require.NoError(t, err)
			require.True(t, row.Step == making || slices.ContainsFunc(listed.Volumes, func(v protocol.Volume) bool { return v.Name == row.Name }))
		}
	})
}

// fuzzedVolumes are volumes of a plugin in memory.
func fuzzedVolumes(t *testing.T, o Options) *volumes {
	t.Helper()
	host, err := volume.NewHost(volume.HostOptions{RootDir: o.RootDir, NodeName: o.NodeName})
	require.NoError(t, err)
	plugins := volume.NewVolumePluginMgr(host)
	plugin := fake.NewPlugin(fake.PluginOptions{Mounter: fake.NewMounter(fake.MounterOptions{})})
	require.NoError(t, plugins.InitPlugins(context.Background(), plugin))
	records := &records{boot: "boot"} // not synced: the fuzzer makes many
	records.state, records.volumes, err = openTable[volumeRecord](o, o.StateDir, record.Options{})
	require.NoError(t, err)
	records.runtime, records.uses, err = openTable[useRecord](o, o.RuntimeDir, record.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, records.close()) })
	manager, err := volumemanager.New(plugins, volumemanager.Options{NoRecords: true, NoMountChecks: true})
	require.NoError(t, err)
	v := &volumes{
		options: o, plugin: plugin, can: plugins.Capabilities(plugin.GetPluginName()), records: records,
		logger: slog.New(slog.DiscardHandler), calls: abandonable.New(abandonable.Options{Stuck: errStuck}),
	}
	v.node = &node{manager: manager, objects: newObjects(), plugins: plugins, failures: new(failures)}
	return v
}
