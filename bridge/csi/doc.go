// Package csi is the directory of what joins this library to the Container Storage Interface: drivers that are used as plugins, and
// plugins that are served as drivers. They are a module of their own, for gRPC and the messages of the specification. This
// package holds no code.
package csi
