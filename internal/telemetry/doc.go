// Package telemetry makes metrics (Prometheus) and traces (OpenTelemetry) of
// what the sidecar does. The packages below know nothing of it: it hangs itself
// on their observers, on the contract of a store, and on the edges of the local
// API.
package telemetry
