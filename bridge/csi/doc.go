// Package csi holds no code. Its directory joins this library to the Container Storage Interface: csidriver uses
// drivers as plugins, csiserver serves plugins as drivers. It is a module of its own, because it needs gRPC and the
// messages of the specification.
package csi
