package ownership

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/treewalk"
)

// do does all of it.
func (w *work) do(ctx context.Context) error {
	tree, err := treewalk.Open(w.dir, treewalk.Options{
		Workers: w.options.Workers,
		Fresh:   true,
		Mask:    unix.STATX_TYPE | unix.STATX_MODE | unix.STATX_GID,
		Without: withoutForWalk(w.options.without),
	})
	if err != nil {
		return fmt.Errorf("ownership: %w", err)
	}
	defer tree.Close()
	if tree.Stat().Mode&unix.S_IFMT == unix.S_IFLNK {
		return fmt.Errorf("ownership of %q: it is a symbolic link; give the path that it leads to: %w: %w",
			w.dir, ErrInvalid, unix.ELOOP)
	}
	skipped, reason := w.rules.skip(tree.Stat())
	w.decide(skipped, reason)
	if skipped {
		return nil
	}
	return w.walk(ctx, tree)
}

// walk changes everything beneath the root, and then the root.
func (w *work) walk(ctx context.Context, tree *treewalk.Tree) error {
	w.setSkips(tree)
	has := probe(w.options.without)
	last := w.visitor(has)
	err := tree.Walk(ctx, func() treewalk.Visitor { return w.visitor(has) })
	if err == nil {
		err = ctx.Err()
	}
	failed := w.failed()
	switch {
	case errors.Is(err, treewalk.ErrStopped):
		return failed
	case err != nil:
		return errors.Join(fmt.Errorf("ownership of %q was interrupted: try again: %w", w.dir, err), failed)
	case failed != nil:
		return failed
	}
	if err := last.root(tree); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.complete = true
	return nil
}

// setSkips lets others see what the walk leaves out.
func (w *work) setSkips(tree *treewalk.Tree) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.skips = func() (foreign, vanished int64) {
		s := tree.Skipped()
		return s.Foreign, s.Vanished
	}
}

func withoutForWalk(f feature) (out treewalk.Feature) {
	if f&featureOpenat2 != 0 {
		out |= treewalk.FeatureOpenat2
	}
	if f&featureMountRoot != 0 {
		out |= treewalk.FeatureMountRoot
	}
	return out
}
