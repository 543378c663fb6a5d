module github.com/locksidecar/locksidecar/tools/proto

go 1.26.8
