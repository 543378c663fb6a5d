module github.com/locksidecar/locksidecar/tools/simulate

go 1.26.0
