// Package pluginpaths computes the paths at which plugins have volumes. By the plugins' contract, the methods that it calls
// do no I/O. It returns a plugin's panic as an error.
package pluginpaths

import (
	"path/filepath"
	"runtime/debug"

	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/volume"
)

// Staging returns the path at which the plugin stages a volume, or keeps the binds of its device; empty if it does neither.
func Staging(plugins *volume.VolumePluginMgr, spec *volume.Spec) (path string, err error) {
	defer catch("GetDeviceMountPath or GetGlobalMapPath", &err)
	if volume.IsBlock(spec) {
		plugin, err := plugins.FindMapperPluginBySpec(spec)
		if err != nil {
			return "", err
		}
		unmapper, err := plugin.NewBlockVolumeUnmapper(spec.Name(), "") // A mapper would need more than is known here.
		if err != nil {
			return "", err
		}
		return unmapper.GetGlobalMapPath(spec)
	}
	if ok, err := plugins.IsDeviceMountable(spec); err != nil || !ok {
		return "", err
	}
	plugin, err := plugins.FindDeviceMountablePluginBySpec(spec)
	if err != nil {
		return "", err
	}
	mounter, err := plugin.NewDeviceMounter()
	if err != nil {
		return "", err
	}
	return mounter.GetDeviceMountPath(spec)
}

// SetUp returns the path at which a plugin sets a volume up for a pod, and tears it down. inner is the volume's inner name.
func SetUp(plugins *volume.VolumePluginMgr, pluginName, inner string, uid types.UID) (path string, err error) {
	defer catch("NewUnmounter or GetPath", &err)
	plugin, err := plugins.FindPluginByName(pluginName)
	if err != nil {
		return "", err
	}
	unmounter, err := plugin.NewUnmounter(inner, uid)
	if err != nil {
		return "", err
	}
	return unmounter.GetPath(), nil
}

// Link returns the path of a pod's link to the device. inner is the volume's inner name.
func Link(plugins *volume.VolumePluginMgr, pluginName, inner string, uid types.UID) (path string, err error) {
	defer catch("NewBlockVolumeUnmapper or GetPodDeviceMapPath", &err)
	plugin, err := plugins.FindMapperPluginByName(pluginName)
	if err != nil {
		return "", err
	}
	unmapper, err := plugin.NewBlockVolumeUnmapper(inner, uid)
	if err != nil {
		return "", err
	}
	dir, link := unmapper.GetPodDeviceMapPath()
	return filepath.Join(dir, link), nil
}

// catch turns a panic of a plugin into an error. The caller defers it.
func catch(call string, err *error) {
	if value := recover(); value != nil {
		*err = &volume.PanicError{Call: call, Value: value, Stack: debug.Stack()}
	}
}
