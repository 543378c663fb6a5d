// Package stores are other ways to a lock in each store that the sidecar knows: the Go
// libraries that people use without a sidecar, and the least that a lock there can cost.
package stores
