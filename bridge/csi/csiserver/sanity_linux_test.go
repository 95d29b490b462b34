package csiserver_test

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/volumekit/volumekit/bridge/csi/csiserver"
	"github.com/volumekit/volumekit/bridge/csi/internal/csitest"
	"github.com/volumekit/volumekit/mount/mounttest"
	"github.com/volumekit/volumekit/plugins/hostpath"
	"github.com/volumekit/volumekit/plugins/loopblock"
)

const mebibyte = int64(1) << 20

// runSanity runs csi-sanity against a driver, stops it, and looks that nothing is left.
func runSanity(t *testing.T, d *driver, run csitest.Run) csitest.Result {
	t.Helper()
	run.Socket, run.Dir = d.options.Socket, t.TempDir()
	run.Size, run.ExpandedSize = 64*mebibyte, 96*mebibyte
	result := csitest.Sanity(t, run)
	d.stop()
	assertNothingLeft(t, d.options)
	return result
}

// absent are the words of services that no plugin has yet.
func absent(spec string) bool {
	return slices.ContainsFunc([]string{"Health", "accessibility requirements"},
		func(word string) bool { return strings.Contains(spec, word) })
}

// A volume is attached by the controller, as many as the node can have.
func TestSanityOfLoopBlock(t *testing.T) {
	mounttest.RequireRoot(t)
	d := serve(t, loopblock.New(loopblock.Options{MaxVolumes: 3}), optionsIn(t.TempDir()))
	result := runSanity(t, d, csitest.Run{AttachLimit: true})
	assert.Equal(t, 95, result.Passed)
	assert.Empty(t, slices.DeleteFunc(result.Skipped, absent))
}

func TestSanityOfLoopBlockAsDevices(t *testing.T) {
	mounttest.RequireRoot(t)
	d := serve(t, loopblock.New(loopblock.Options{MaxVolumes: 3}), optionsIn(t.TempDir()))
	result := runSanity(t, d, csitest.Run{AttachLimit: true, Block: true})
	assert.Equal(t, 95, result.Passed)
	assert.Empty(t, slices.DeleteFunc(result.Skipped, absent))
}

// A node attaches its volumes itself, and they are of use nowhere else, as in a DaemonSet.
func TestSanityOfLoopBlockOnItsNode(t *testing.T) {
	mounttest.RequireRoot(t)
	options := optionsIn(t.TempDir())
	options.Attach, options.Topology = csiserver.AttachOnNode, map[string]string{"topology.example.com/node": "node-1"}
	result := runSanity(t, serve(t, loopblock.New(loopblock.Options{}), options), csitest.Run{})
	assert.Equal(t, 85, result.Passed)
}

// A plugin that neither attaches nor stages nor expands, and whose volumes are directories.
func TestSanityOfHostPath(t *testing.T) {
	mounttest.RequireMounts(t)
	dir := t.TempDir()
	plugin := hostpath.New(hostpath.Options{BaseDir: filepath.Join(dir, "volumes")})
	result := runSanity(t, serve(t, plugin, optionsIn(dir)), csitest.Run{})
	assert.Equal(t, 36, result.Passed)
}
