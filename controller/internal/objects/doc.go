// Package objects reads what claims, volumes and storage classes say of themselves and of each other, and names the marks that the
// controller puts on them. It keeps no state.
package objects
