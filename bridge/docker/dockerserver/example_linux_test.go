package dockerserver_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/bridge/docker/dockerserver"
	"github.com/volumekit/volumekit/plugins/hostpath"
	"github.com/volumekit/volumekit/volume"
)

// A plugin that does not provision serves what Source says. Docker would make these calls itself.
func Example() {
	dir, err := os.MkdirTemp("", "d")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = os.RemoveAll(dir) }()
	server, err := dockerserver.New(hostpath.New(hostpath.Options{}), dockerserver.Options{
		Socket: filepath.Join(dir, "s", "srv.sock"), RootDir: filepath.Join(dir, "root"),
		StateDir: filepath.Join(dir, "state"), RuntimeDir: filepath.Join(dir, "run"), NodeName: "node-1",
		Source: func(name string, options map[string]string) (*volume.Spec, error) {
			if len(options) > 0 {
				return nil, fmt.Errorf("volumes of this driver have no options: %w", volume.ErrInvalid)
			}
			source := v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: "/usr/share"}}
			return volume.NewSpecFromVolume(&v1.Volume{Name: name, VolumeSource: source}), nil
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- server.Run(ctx) }()

	docker := client(filepath.Join(dir, "s", "srv.sock"))
	for _, call := range [][2]string{
		{"Create", `{"Name": "share"}`}, {"Mount", `{"Name": "share", "ID": "c1"}`}, {"Unmount", `{"Name": "share", "ID": "c1"}`},
	} {
		fmt.Println(call[0], said(docker, call[0], call[1]))
	}
	docker.CloseIdleConnections()
	stop()
	fmt.Println(<-ended)
	// Output:
	// Create {}
	// Mount {"Mountpoint":"/usr/share"}
	// Unmount {}
	// <nil>
}

// said returns the answer to a call, once the server listens.
func said(docker *http.Client, call, request string) string {
	for {
		response, err := docker.Post("http://docker/VolumeDriver."+call, "", strings.NewReader(request))
		if err != nil {
			continue
		}
		defer func() { _ = response.Body.Close() }()
		answer := new(strings.Builder)
		if err := response.Write(answer); err != nil {
			return err.Error()
		}
		_, body, _ := strings.Cut(answer.String(), "\r\n\r\n")
		return body
	}
}
