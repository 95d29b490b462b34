package mount

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"path"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/abandonable"
)

// stagePoint is the directory on the stage at which a helper mounts.
const stagePoint = "mount"

// stage is a private, empty filesystem on which a helper mounts. Its path follows from the target: the next call for the same
// target finds and unmounts what a killed program has left there.
type stage struct {
	*entry
}

// stagePath returns the path of the stage for a target.
func (h *helpers) stagePath(target string) string {
	sum := sha256.Sum256([]byte(target))
	return path.Join(h.dir, hex.EncodeToString(sum[:16]))
}

// openStage makes the stage.
func (h *helpers) openStage(ctx context.Context, target string) (*stage, error) {
	if _, err := cleanPath("the helpers' directory", h.dir); err != nil {
		return nil, err
	}
	if err := h.clearStage(ctx, target); err != nil {
		return nil, err
	}
	p, err := h.reader.makeParent(ctx, h.stagePath(target))
	if err != nil {
		return nil, err
	}
	st := &stage{entry: p}
	if err := st.checkDir(); err != nil {
		p.close()
		return nil, err
	}
	if err := st.make(ctx); err != nil {
		return nil, errors.Join(err, st.close(ctx))
	}
	return st, nil
}

// checkDir refuses a directory of stages that other users can write to.
func (st *stage) checkDir() error {
	var stat unix.Stat_t
	if err := unix.Fstatat(st.parent, "", &stat, unix.AT_EMPTY_PATH); err != nil {
		return err
	}
	if int(stat.Uid) != unix.Geteuid() || stat.Mode&0o022 != 0 {
		return fmt.Errorf("directory %q for helpers must be owned by this user and writable for no other user: %w",
			path.Dir(st.path), ErrInvalid)
	}
	return nil
}

func (st *stage) make(ctx context.Context) error {
	if err := abandonable.Begin(ctx, "mkdirat"); err != nil {
		return err
	}
	if err := unix.Mkdirat(st.parent, st.base, 0o700); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("making %q: %w", st.path, err)
	}
	abandonable.Note(ctx, "mount")
	if err := unix.Mount("stage", st.name(), "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0700,size=64k"); err != nil {
		return fmt.Errorf("mounting at %q: %w", st.path, explainLimit(err))
	}
	if err := unix.Mount("", st.name(), "", unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("making %q private: %w", st.path, err)
	}
	if err := unix.Mkdirat(st.parent, st.base+"/"+stagePoint, 0o700); err != nil {
		return fmt.Errorf("making %q: %w", st.point(), err)
	}
	return nil
}

// point is the path at which the helper mounts.
func (st *stage) point() string { return st.path + "/" + stagePoint }

// result opens the root of what the helper has mounted.
func (st *stage) result(ctx context.Context) (int, error) {
	if err := abandonable.Begin(ctx, "openat2"); err != nil {
		return -1, err
	}
	dir, err := st.open()
	if err != nil {
		return -1, err
	}
	defer closeFD(dir)
	point := &entry{reader: st.reader, parent: dir, base: stagePoint, path: st.point()}
	mounted, err := point.mounted(ctx)
	if err != nil {
		return -1, err
	}
	if !mounted {
		return -1, fmt.Errorf("it reported success and has mounted nothing: %w", ErrNotMounted)
	}
	return point.open()
}

// close unmounts the stage, with what the helper may have left on it, and closes the entry.
func (st *stage) close(ctx context.Context) error {
	defer st.entry.close()
	abandonable.Note(ctx, "umount2(MNT_DETACH)")
	return st.clear()
}

// clear unmounts everything at the path of the stage, and removes its directory.
func (st *stage) clear() error {
	for range maxStack {
		err := unix.Unmount(st.name(), unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
			break
		}
		if err != nil {
			return fmt.Errorf("unmounting %q: %w", st.path, err)
		}
	}
	if err := unix.Unlinkat(st.parent, st.base, unix.AT_REMOVEDIR); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("removing %q: %w", st.path, err)
	}
	return nil
}

// clearStage unmounts the stage that a killed program has left for the target.
func (h *helpers) clearStage(ctx context.Context, target string) error {
	if len(h.programs) == 0 {
		return nil
	}
	p, err := h.reader.openParent(ctx, h.stagePath(target))
	if isAbsent(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer p.close()
	if _, err := p.stat(); isAbsent(err) {
		return nil
	}
	return (&stage{entry: p}).clear()
}
