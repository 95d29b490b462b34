package inspect_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/volumekit/volumekit/bridge/inspect"
	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager"
)

// An agent serves its manager beside its own pages. The manager here does not run, so that the agent is not ready.
func ExampleNewNode() {
	plugins := volume.NewVolumePluginMgr(fake.NewHost(""))
	mounter := fake.NewMounter(fake.MounterOptions{})
	err := plugins.InitPlugins(context.Background(), fake.NewPlugin(fake.PluginOptions{Mounter: mounter}))
	if err != nil {
		fmt.Println(err)
		return
	}
	manager, err := volumemanager.New(plugins, volumemanager.Options{Mounter: mounter, NoRecords: true})
	if err != nil {
		fmt.Println(err)
		return
	}
	mux := http.NewServeMux()
	mux.Handle("/volumes/", http.StripPrefix("/volumes", inspect.NewNode(manager, inspect.NodeOptions{})))

	answer := httptest.NewRecorder()
	mux.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/volumes/readyz", nil))
	fmt.Print(answer.Code, " ", answer.Body)
	// Output: 503 not ready: Run does not work, or has not read its records yet
}
