module github.com/locksidecar/locksidecar/e2e

go 1.26.0
