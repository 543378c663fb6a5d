// Package javatest runs Java programs that lock with the libraries of Java
// services, so that tests can show that those and a sidecar exclude each other
// in one store.
//
// The programs are a small Maven project in this folder. It is built when it is
// first asked for, into the user's cache folder, once for all test processes of
// the machine and again when its sources change. That needs mvn and a JDK of 17
// or newer; where they are missing, tests fail and say what to install.
//
//	c := javatest.NewCounter(t)
//	p := javatest.Curator(t, c, "java-1", "127.0.0.1:2181", javatest.Mutex, "/orders/42")
//	p.Count(javatest.Write, 100)  // 100 increments, each under the lock
//	...                           // the same by c.Add under the sidecar's lock
//	c.Check(t, 200)               // none was lost, and nobody met anybody inside
package javatest
