// Package manifest reads the pods, claims, volumes and classes of one run. It refuses faulty manifests before anything
// is created, and omits the volumes that this machine does not support.
package manifest
