package leader_test

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/controller/leader"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// One of two processes leads. When it ends, the other leads in the next term.
func ExampleRun() {
	objects := store.NewMemory(store.MemoryOptions{})
	for _, holder := range []string{"process-1", "process-2"} {
		options := leader.Options{Name: types.NamespacedName{Namespace: "default", Name: "volumes"}, Holder: holder}
		err := leader.Run(context.Background(), objects, options, func(ctx context.Context, _ store.Store) error {
			token, _ := volume.FencingTokenFrom(ctx)
			fmt.Println(holder, "leads in term", token.Term) // Run a new controller on the store here, until ctx ends.
			return errors.New("the controller ended")
		})
		fmt.Println(err)
	}
	// Output:
	// process-1 leads in term 1
	// the controller ended
	// process-2 leads in term 2
	// the controller ended
}
