package fakedriver

// Bug is a bug of a driver that loses a user's data or exposes it to others. csi-sanity finds none of these bugs.
type Bug uint8

// The bugs.
const (
	NoBug Bug = iota
	// IgnoresReadOnly publishes read-only volumes writable.
	IgnoresReadOnly
	// NeverMounts makes a directory at the target.
	NeverMounts
	// SharesOneDirectory has one directory for all volumes.
	SharesOneDirectory
	// WipesAtPublish empties a volume when it is published.
	WipesAtPublish
	// StacksMounts mounts again at each call.
	StacksMounts
	// UnmountsLazily unmounts a volume that has an open file.
	UnmountsLazily
	// ClonesNothing reports an empty volume as a copy.
	ClonesNothing
	// LeavesTheStorage reports a volume as deleted and keeps its storage.
	LeavesTheStorage
	// MeasuresNothing reports 0 for every quantity.
	MeasuresNothing
	// ForgetsAtRestart forgets all volumes at a restart.
	ForgetsAtRestart
	// NoLock has no lock per volume: two concurrent calls both find the tmpfs of a volume missing, and both mount one.
	NoLock
)

// String describes the bug.
func (b Bug) String() string {
	return [...]string{
		"none", "ignores read-only", "publishes without a mount", "all volumes share one directory", "wipes data at each publish",
		"repeated publish stacks mounts", "unpublish is lazy", "clone copies nothing", "delete leaves the storage", "stats are zero",
		"state is lost at a restart", "no lock per volume",
	}[b]
}
