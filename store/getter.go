package store

import (
	"context"

	v1 "k8s.io/api/core/v1"
)

// Getter reads config maps and secrets from a store for plugins. It implements files.ConfigMaps and files.Secrets of
// package plugins/files, and volume.SecretGetter.
//
//	objects := store.Getter{Store: s}
//	plugins.InitPlugins(ctx, files.NewConfigMap(objects, files.Options{}), files.NewSecret(objects, files.Options{}))
//
// Each call reads the store once. The error for a missing object matches [ErrNotFound], so an optional source gives no
// files. Every other error fails the set-up. No error holds content of the object.
type Getter struct {
	// Store is where the objects are; it must not be nil.
	Store Store
}

// ConfigMap returns the config map of a namespace by its name.
func (g Getter) ConfigMap(ctx context.Context, namespace, name string) (*v1.ConfigMap, error) {
	return Get[*v1.ConfigMap](ctx, g.Store, namespace, name)
}

// Secret returns the secret of a namespace by its name.
func (g Getter) Secret(ctx context.Context, namespace, name string) (*v1.Secret, error) {
	return Get[*v1.Secret](ctx, g.Store, namespace, name)
}
