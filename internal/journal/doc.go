// Package journal appends to a file so that what was acknowledged is there after a crash, and a failed write leaves nothing.
//
// A [Journal] belongs to one goroutine at a time. It knows what a full disk and a failed sync leave behind, and mends that before
// the next append. What the bytes mean is its owner's business. [Files] and [File] are the system calls that a directory with such
// a file needs; package modeldisk keeps one in memory, for tests that cut the power.
package journal
