// Package telemetry makes metrics (Prometheus) and traces (OpenTelemetry) of
// what the sidecar does. The packages below do not know it. It implements their
// observers, wraps the contract of a store, and wraps the local API.
package telemetry
