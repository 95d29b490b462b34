//go:build linux && !amd64 && !arm64

package faultrun

// arch is zero: this package has no filter for this architecture.
const arch = 0

func olderChanging() []rule { return nil }

func olderFiles() []rule { return nil }

func olderSpellings() map[uint32]spelling { return nil }
