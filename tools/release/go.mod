module github.com/locksidecar/locksidecar/tools/release

go 1.26.0
