package mount

import "context"

// CheckFilesystem returns nil while the filesystem that is mounted at path serves its users. It returns an error that
// matches [ErrFilesystemFailed] if the filesystem was shut down, has lost its device, or has become read-only by itself. A
// filesystem that was mounted read-only serves its users. path is absolute, and its last element must not be a symbolic
// link. The check writes the root directory to disk. The call returns when ctx ends, with an [*AbandonedError].
func CheckFilesystem(ctx context.Context, path string) error {
	_, err := RunAbandonable(ctx, "fsync", path, func() (struct{}, error) { return struct{}{}, checkFilesystem(path) })
	return err
}
