// Package protocol is what both sides of Docker's volume plugin protocol say: one HTTP POST for each call, on a unix socket, with a
// JSON object as its request and its answer.
package protocol

// ContentType is the media type of requests and answers.
const ContentType = "application/vnd.docker.plugins.v1.1+json"

// VolumeDriver is what a volume driver says that it implements.
const VolumeDriver = "VolumeDriver"

// The paths of the calls.
const (
	Activate     = "/Plugin.Activate"
	Create       = "/VolumeDriver.Create"
	Remove       = "/VolumeDriver.Remove"
	Mount        = "/VolumeDriver.Mount"
	Unmount      = "/VolumeDriver.Unmount"
	Path         = "/VolumeDriver.Path"
	Get          = "/VolumeDriver.Get"
	List         = "/VolumeDriver.List"
	Capabilities = "/VolumeDriver.Capabilities"
)

// Implements is the answer to [Activate].
type Implements struct {
	Implements []string
}

// Nothing is the request of a call without arguments, and the answer of one without a result.
type Nothing struct{}

// Creation is the request of [Create]. Opts are the options of docker volume create -o.
type Creation struct {
	Name string
	Opts map[string]string `json:",omitempty"`
}

// Name is the request of [Remove], [Path] and [Get].
type Name struct {
	Name string
}

// Use is the request of [Mount] and [Unmount]. ID is that of one use: Docker sends the same to Unmount as to Mount.
type Use struct {
	Name string
	ID   string
}

// Mounted is the answer to [Mount] and [Path]: the absolute path on the host. Path answers with "" for a volume that is not mounted.
type Mounted struct {
	Mountpoint string
}

// Volume is one volume. Mountpoint is empty when it is not mounted.
type Volume struct {
	Name       string
	Mountpoint string         `json:",omitempty"`
	CreatedAt  string         `json:",omitempty"`
	Status     map[string]any `json:",omitempty"`
}

// Got is the answer to [Get].
type Got struct {
	Volume *Volume
}

// Listed is the answer to [List].
type Listed struct {
	Volumes []Volume
}

// Scope is the answer to [Capabilities].
type Scope struct {
	Capabilities struct {
		Scope string
	}
}

// Failure is the answer of a call that has failed, with status 500. Docker shows Err to its user.
type Failure struct {
	Err string
}
