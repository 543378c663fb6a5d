package examples

import "slices"

// Why a case of the contract cannot be said with the tools of the shell.
const (
	noRelay     = "each tool opens a connection of its own, whose lines are not to be withheld by one relay"
	noSession   = "a script has no session beside its lock: there is nothing to close under it, and nothing to close twice"
	noOwner     = "the owner of a script's lock is its process: it cannot be named, and has one lock"
	noReentry   = "a script does not enter again what it has entered"
	noChange    = "no tool extends or downgrades the lock under a command"
	noDetach    = "`locksidecar detached take` takes and detaches in one step: what a command runs under is not detached"
	noDrain     = "the tools do not tell that the sidecar is about to stop"
	noDrop      = "a script cannot forget a lock: its process has it"
	noFork      = "what a command forks is a part of the command, and works under its lock"
	noStop      = "a command that stood still is ended when the tool goes on, a moment later: it asks nothing before that"
	noUnwatched = "the tools always listen: there is no loss that nobody hears of"
	noQueue     = "each script asks for one lock in a session of its own: none queues in a client, and no limit of one session is reached"
	noOutcome   = "`locksidecar once` says by itself how an attempt has ended, with the status in the note: a script chooses neither"
)

// notInShell states for each case that is not run why not. unsayable must find the same.
var notInShell = map[string]string{
	"after-release":  noChange,
	"close":          noSession,
	"closed":         noSession,
	"deadlock":       noOwner,
	"detach":         noDetach,
	"drain":          noDrain,
	"drained":        noDrain,
	"dropped":        noDrop,
	"extend":         noChange,
	"fork":           noFork,
	"leader":         noChange,
	"lost-answer":    noRelay,
	"not-reentrant":  noOwner,
	"once":           noOutcome,
	"once-attempts":  noOutcome,
	"once-lost":      noOutcome,
	"queued":         noQueue,
	"queued-killed":  noQueue,
	"reentrant":      noReentry,
	"refused":        noQueue,
	"renewed":        noStop,
	"renewed-unread": noStop,
	"shared":         noReentry,
	"stopped":        noStop,
	"stopped-unread": noStop,
	"unread":         noUnwatched,
}

// unsayable is all for which the tools have no word in a case.
func unsayable(c contractCase) []string {
	var all []string
	add := func(is bool, why string) {
		if is && !slices.Contains(all, why) {
			all = append(all, why)
		}
	}
	for need, why := range map[string]string{"fork": noFork, "stop": noStop, "queue": noQueue, "detach": noDetach, "relay": noRelay} {
		add(slices.Contains(c.Needs, need), why)
	}
	for _, flags := range c.Sidecars {
		add(flags["max-holds"] != "", noQueue)
	}
	for _, s := range c.Steps {
		add(s.Do == "extend" || s.Do == "downgrade", noChange)
		add(s.Do == "draining", noDrain)
		add(s.Do == "drop", noDrop)
		add(s.Owner != "", noOwner)
		add(s.Reentrant, noReentry)
		add(s.Unwatched, noUnwatched)
		add(s.Once != nil || s.Outcome != "", noOutcome)
		add(s.Error == "SESSION_CLOSED" || s.Reason == "SESSION_CLOSED", noSession)
	}
	return all
}
