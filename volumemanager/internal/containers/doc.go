// Package containers is what concerns containers and not their volumes: what a container asks for, the variables of its
// subPathExpr, and the parts of volumes that are bound for it. [Subpaths] is its only state.
package containers
