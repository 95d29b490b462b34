package mount

import "context"

// CheckFilesystem returns nil while the filesystem that is mounted at path serves its users, and an error that matches
// [ErrFilesystemFailed] when it has given up: it was shut down, has lost its device, or has become read-only by itself. One
// that was mounted read-only serves. path is absolute, and its last element no symbolic link. The root directory is written to disk
// for that; the call returns when ctx ends, with an [*AbandonedError].
func CheckFilesystem(ctx context.Context, path string) error {
	_, err := RunAbandonable(ctx, "fsync", path, func() (struct{}, error) { return struct{}{}, checkFilesystem(path) })
	return err
}
