// Package manifest reads the pods, claims, volumes and classes of one run, refuses what cannot work before anything is made, and leaves
// out the volumes that this machine cannot serve.
package manifest
