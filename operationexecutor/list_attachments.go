package operationexecutor

import (
	"context"
	"fmt"

	"github.com/volumekit/volumekit/volume"
)

// ListAttachments begins to ask a plugin what its storage has attached. take gets the answer, with the context of the
// operation, which ends with an error that take returns. The operation holds no key and is never refused for another one: what
// it lists may be older than what take finds. A plugin that is no volume.AttachmentLister is an error of the operation that
// matches volume.ErrUnsupported.
func (e *Executor) ListAttachments(
	ctx context.Context, pluginName string, take func(ctx context.Context, found []volume.Attachment) error,
) (*Operation, error) {
	plugins := e.generator.GetVolumePluginMgr()
	info := OperationInfo{Kind: OpListAttachments, PluginName: pluginName}
	return e.begin(ctx, Key{}, newOperation(info, codeFunc(func(ctx context.Context, x *execution) error {
		lister, err := find(ctx, x, func() (volume.AttachmentLister, error) { return findLister(plugins, pluginName) })
		if err != nil {
			return err
		}
		found, err := perform(ctx, x, x.reading("ListAttachments"), lister.ListAttachments)
		if err != nil {
			return err
		}
		return x.port(ctx, "take", func(ctx context.Context) error { return take(ctx, found) })
	})))
}

func findLister(plugins *volume.VolumePluginMgr, pluginName string) (volume.AttachmentLister, error) {
	plugin, err := plugins.FindAttachablePluginByName(pluginName)
	if err != nil {
		return nil, err
	}
	lister, ok := plugin.(volume.AttachmentLister)
	if !ok {
		return nil, fmt.Errorf("plugin %q cannot list attachments: %w", pluginName, volume.ErrUnsupported)
	}
	return lister, nil
}
