// Package examples has clients for other languages and programs that use them.
// Its tests run the clients' own test suites, each of their tests as one of
// Go's, and what takes more than one language: against sidecars on a real Redis
// and a real MySQL.
package examples
