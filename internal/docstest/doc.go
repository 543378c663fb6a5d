// Package docstest checks that the documentation is true: it runs the blocks of README
// and docs, follows their links, and compares the flags, variables, metrics and alarms
// that they name with the program and the chart.
//
// Each fenced block of a language that can be run here is run. A comment on the line
// before the fence says otherwise, always with a reason:
//
//	<!-- docs-test: not run: REASON -->       neither run nor compiled
//	<!-- docs-test: compiled: REASON -->      a part of a program: its syntax is checked
//	<!-- docs-test: continued -->             goes on in the shell of the block before
//
// Shell blocks run in bash, in an empty directory, beside a sidecar of their own on the
// embedded store, and must end by themselves with status 0. What such a block shows as
// "# {…" must be in its output as far as the first name.
//
// The SQL of the stores' pages is run on real servers (TestSQL), and openapi.json is
// compared with the sidecar by schemathesis (TestOpenAPI).
package docstest
