// Package show prints what an example does: lines for people, or one JSON document per line for programs; what is done to each volume
// as it happens; and why a run failed, one line for each thing that is wrong.
package show
