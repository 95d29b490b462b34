// Command k8s links kubelet's volume manager and prints what the kernel says of its memory at the start.
package main

import (
	"fmt"
	"os"

	"k8s.io/kubernetes/pkg/kubelet/volumemanager"
)

func main() {
	if len(os.Args) > 9 { // never: it keeps the linker from leaving the package out
		volumemanager.NewVolumeManager(false, "", nil, nil, nil, nil, nil, nil, "", nil, nil)
	}
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Print(string(status))
}
