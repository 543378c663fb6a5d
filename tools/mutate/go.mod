module github.com/locksidecar/locksidecar/tools/mutate

go 1.26.0
