// Package containers reads what a container asks of its volumes, expands the variables of its subPathExpr, and binds parts
// of volumes for it. It keeps no state but [Subpaths].
package containers
