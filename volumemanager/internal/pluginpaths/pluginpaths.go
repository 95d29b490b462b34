// Package pluginpaths says where plugins have volumes. What it calls does no I/O, by the plugins' contract; a panic is an error.
package pluginpaths

import (
	"path/filepath"
	"runtime/debug"

	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/volume"
)

// Staging returns where the plugin stages a volume, or where it has the binds of a device; empty when nowhere.
func Staging(plugins *volume.VolumePluginMgr, spec *volume.Spec) (path string, err error) {
	defer catch("GetDeviceMountPath or GetGlobalMapPath", &err)
	if volume.IsBlock(spec) {
		plugin, err := plugins.FindMapperPluginBySpec(spec)
		if err != nil {
			return "", err
		}
		unmapper, err := plugin.NewBlockVolumeUnmapper(spec.Name(), "") // A mapper needs more than is known of what was found.
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

// SetUp returns where a plugin tears a volume down for a pod. inner is the volume's inner name.
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

// Link returns where the link of a pod to its device is. inner is the volume's inner name.
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

// catch makes an error of a panic of a plugin. It is to be deferred.
func catch(call string, err *error) {
	if value := recover(); value != nil {
		*err = &volume.PanicError{Call: call, Value: value, Stack: debug.Stack()}
	}
}
