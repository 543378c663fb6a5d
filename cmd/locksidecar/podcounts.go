package main

import "github.com/locksidecar/locksidecar/localapi"

// eachPrincipal tells what principals have, one after the other.
type eachPrincipal = func(f func(name string, sessions, holds int))

// countedPrincipals gives pods together, by their namespace: a series for each pod that has ever been
// on a node would be many.
func countedPrincipals(each eachPrincipal) eachPrincipal {
	return func(f func(name string, sessions, holds int)) {
		type count struct{ sessions, holds int }
		namespaces := make(map[string]count)
		each(func(name string, sessions, holds int) {
			namespace := localapi.NamespaceOf(name)
			if namespace == "" {
				f(name, sessions, holds)
				return
			}
			c := namespaces[namespace]
			namespaces[namespace] = count{c.sessions + sessions, c.holds + holds}
		})
		for namespace, c := range namespaces {
			f("namespace:"+namespace, c.sessions, c.holds)
		}
	}
}
