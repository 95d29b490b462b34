package main

// The names of the plugins that the built-in manifests use.
const (
	hostPath  = "kubernetes.io/host-path"
	emptyDir  = "kubernetes.io/empty-dir"
	loopBlock = "volumekit.io/loop-block"
)
