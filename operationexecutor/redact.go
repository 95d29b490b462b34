package operationexecutor

import "github.com/volumekit/volumekit/volume"

// redact returns the error of a plugin without the secrets of the specs that it was given.
func (x *execution) redact(plugin string, err error) error {
	if err == nil {
		return nil
	}
	for _, secrets := range x.secrets(plugin) {
		err = secrets.Redact(err)
	}
	return err
}

// redactPanic returns what a plugin panicked with, without secrets.
func (x *execution) redactPanic(plugin string, value any) any {
	if value == nil {
		return nil
	}
	for _, secrets := range x.secrets(plugin) {
		value = secrets.RedactPanic(value)
	}
	return value
}

func (x *execution) secrets(plugin string) []volume.Secrets {
	var all []volume.Secrets
	for _, c := range x.specs {
		all = append(all, c.original.Secrets(c.generator.plugins.PublicKeys(plugin)))
	}
	if x.parameters != nil {
		all = append(all, volume.VolumeOptions{MutableParameters: x.parameters}.Secrets(x.executor.generator.GetVolumePluginMgr().PublicKeys(plugin)))
	}
	return all
}
