// Package examples has clients for other languages and programs that use them.
// Its tests run the clients' own test suites, each test as a subtest of Go's. They also
// run tests that need more than one language. All run against sidecars on a real Redis
// and a real MySQL.
package examples
