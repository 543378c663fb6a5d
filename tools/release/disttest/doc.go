// Package disttest installs what `make release` has put into dist/ into empty projects, and
// takes a lock with each, through a sidecar from dist/. `make release-test` runs it.
package disttest
