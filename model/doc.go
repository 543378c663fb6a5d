// Package model holds models of the lock protocol in Promela, and the test that
// checks them with spin: each law is an assertion, and each rule that a law rests on
// can be taken out, after which the check must fail. README.md explains them.
package model
