// Package volume is the contract between an orchestrator and its volume plugins.
package volume
