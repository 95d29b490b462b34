// Package journal appends to a file. Data that was acknowledged survives a crash, and a failed append leaves nothing in the file.
//
// A [Journal] may be used by one goroutine at a time. Before each append it repairs what a full disk or a failed sync has left. It
// does not interpret the data. [Files] and [File] are the system calls on the directory and the file. Package modeldisk implements
// them in memory, for tests that simulate power cuts.
package journal
