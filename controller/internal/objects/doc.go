// Package objects reads the fields of claims, volumes and storage classes that refer to each other, and names the controller's
// annotations and finalizers. It keeps no state.
package objects
