// Package show prints the progress and the errors of an example: lines for people, or one JSON document per line for
// programs.
package show
