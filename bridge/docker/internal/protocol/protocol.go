// Package protocol has the messages of Docker's volume plugin protocol: each call is one HTTP POST on a unix socket,
// with a JSON object as its request and another as its answer.
package protocol

// ContentType is the media type of requests and answers.
const ContentType = "application/vnd.docker.plugins.v1.1+json"

// VolumeDriver is the interface that a volume driver reports in [Implements].
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
	// Implements has [VolumeDriver] for a volume driver.
	Implements []string
}

// Nothing is the request of a call without arguments, and the answer of one without a result.
type Nothing struct{}

// Creation is the request of [Create].
type Creation struct {
	// Name is the name of the volume.
	Name string
	// Opts are the options of docker volume create -o.
	Opts map[string]string `json:",omitempty"`
}

// Name is the request of [Remove], [Path] and [Get].
type Name struct {
	// Name is the name of the volume.
	Name string
}

// Use is the request of [Mount] and [Unmount].
type Use struct {
	// Name is the name of the volume.
	Name string
	// ID identifies one use: Docker sends the same to Unmount as to Mount.
	ID string
}

// Mounted is the answer to [Mount] and [Path].
type Mounted struct {
	// Mountpoint is an absolute path of the host; empty for a volume that is not mounted.
	Mountpoint string
}

// Volume is one volume.
type Volume struct {
	// Name is its name.
	Name string
	// Mountpoint is an absolute path of the host; empty while it is not mounted.
	Mountpoint string `json:",omitempty"`
	// CreatedAt is a time in RFC 3339; empty when it is not known.
	CreatedAt string `json:",omitempty"`
	// Status is what docker volume inspect shows.
	Status map[string]any `json:",omitempty"`
}

// Got is the answer to [Get].
type Got struct {
	// Volume is the volume; nil in an invalid answer of a driver.
	Volume *Volume
}

// Listed is the answer to [List].
type Listed struct {
	// Volumes are all volumes of the driver.
	Volumes []Volume
}

// Scope is the answer to [Capabilities].
type Scope struct {
	// Capabilities has the scope.
	Capabilities Capability
}

// Capability is what a driver can do.
type Capability struct {
	// Scope is "local" or "global".
	Scope string
}

// Failure is the answer of a call that has failed, with status 500.
type Failure struct {
	// Err is shown to the user of Docker.
	Err string
}
