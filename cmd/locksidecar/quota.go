package main

import (
	"cmp"
	"fmt"

	"github.com/locksidecar/locksidecar/session"
)

// With the defaults of --max-holds-per-uid and --max-detached-per-uid, a space may have what five principals may.
const (
	defaultHoldsPerSpace    = 5 * session.DefaultHoldsPerUID
	defaultDetachedPerSpace = 5 * session.DefaultDetachedPerUID
)

// quota is a flag for what several principals may have together.
type quota struct {
	flag, help string
	value      *int
	account    bool // of one service account, else of one space
}

// quotas are those of a space and those of a service account: each has the same ones.
func (s *serveFlags) quotas() []quota {
	space, account := &s.sessions.PerSpace, &s.sessions.PerAccount
	spaceAPI, accountAPI := &s.api.PerSpace, &s.api.PerAccount
	var all []quota
	for _, q := range []struct {
		what, help, byDefault string
		space, account        *int
	}{
		{"connections", "connections", "half of --max-connections", &spaceAPI.Connections, &accountAPI.Connections},
		{"sessions", "app sessions", "half of --max-sessions", &space.Sessions, &account.Sessions},
		{"holds", "what --max-holds counts,", fmt.Sprint(defaultHoldsPerSpace), &space.Holds, &account.Holds},
		{"in-flight", "what --max-in-flight counts,", "half of --max-in-flight", &space.InFlight, &account.InFlight},
		{"waiters", "waiting requests", "no other limit than those of holds and of what is in flight, which count them too", &space.Waiters, &account.Waiters},
		{"detached", "what --max-detached-per-uid counts,", fmt.Sprint(defaultDetachedPerSpace), &space.Detached, &account.Detached},
		{"watches", "watches", "as many as --max-connections-per-space", &spaceAPI.Watches, &accountAPI.Watches},
	} {
		all = append(all,
			quota{"max-" + q.what + "-per-space", q.help + " of one space together, with --space unit or namespace (default " + q.byDefault + ")", q.space, false},
			quota{"max-" + q.what + "-per-service-account", q.help + " of one service account of Kubernetes together, with --principal pod (default: what its space may have)", q.account, true})
	}
	return all
}

// togetherLimits are what several principals may have together.
func (s *serveFlags) togetherLimits(o *sidecarOptions) error {
	for _, q := range s.quotas() {
		switch {
		case *q.value < 0:
			return usage("--%s is %d: must be at least 0", q.flag, *q.value)
		case *q.value == 0:
		case q.account && s.principal != byPod:
			return usage("--%s means nothing without --principal pod", q.flag)
		case s.space == 0:
			return usage("--%s means nothing without --space unit or --space namespace", q.flag)
		}
	}
	if s.space == 0 {
		return nil
	}
	space := &o.limits.PerSpace
	space.Sessions = cmp.Or(space.Sessions, max(1, s.sessions.Sessions/2))
	space.Holds = cmp.Or(space.Holds, defaultHoldsPerSpace)
	space.InFlight = cmp.Or(space.InFlight, max(1, s.sessions.InFlight/2))
	space.Detached = cmp.Or(space.Detached, defaultDetachedPerSpace)
	return nil
}
