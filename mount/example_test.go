package mount_test

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/mount"
)

// A plugin is given a mounter: mount.New(mount.Options{}) on a machine, and here a model of one, which needs no root.
func Example() {
	ctx := context.Background()
	machine := fake.NewMounter(fake.MounterOptions{})
	if err := machine.MkdirAll("/srv/data", 0o755); err != nil {
		fmt.Println(err)
		return
	}
	var m mount.Interface = machine

	const target = "/run/agent/pods/42/data"
	err := m.Mount(ctx, mount.Request{Source: "/srv/data", Target: target, Options: []string{"bind", "ro", "nosuid", "nodev"}})
	fmt.Println(err)
	is, err := m.IsMountPoint(ctx, target)
	fmt.Println(is, err)
	err = machine.WriteFile(target+"/f", []byte("written by a workload"), 0o644)
	fmt.Println(errors.Is(err, syscall.EROFS))

	// It may be called again: there is nothing left to do, and that is no error.
	for range 2 {
		fmt.Println(mount.UnmountPath(ctx, m, target, mount.UnmountOptions{}))
	}

	// Output:
	// <nil>
	// true <nil>
	// true
	// <nil>
	// <nil>
}
