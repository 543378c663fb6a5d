/*
 * failover.pml: another server takes over, and knows less.
 *
 * Two servers; the second copies the first now and then. At any moment it takes
 * over as it is, and later the first one comes back, as it was or as a copy of the
 * second. Sidecar A and sidecar B want one lock. A is here in full: its requests are
 * carried out late by whoever is master then, and its answers come late or never. B
 * is one whose requests take no time and whose lease always lives. Either may stand
 * still while time goes on. Clocks agree, and both have the same TTL.
 *
 * Steps that the code names: failover.PROMOTE, failover.BEAT, failover.RENEW,
 * failover.STRANGER, failover.COMPARE, failover.RENEWED, failover.STRAY,
 * failover.ASK, failover.ANSWERED, failover.GRANTED.
 */

#define TTL     3
#define MARGIN  1
#define HORIZON 4
#define FAILOVERS 2 /* there and back */

#define NOBODY 0
#define A 1
#define B 2

byte now;

/* What each server knows: who holds the lock, and until when A's lease lives; 0: it
   is over for good. */
byte holder[2], ends[2];
bit master;
byte term = 1; /* how often a server has become master; tells which one it is, too */

/* What sidecar A knows. */
byte relied = TTL - MARGIN;
byte trusted = 1;  /* the term whose memory is known to be that of A; 0: none */
byte compared;     /* the term whose memory was compared at the last heartbeat; 0: none */
byte seen = 1;     /* the term that has answered last */
byte since;        /* when A saw that it was new */
bool held;         /* the app has the lock, and believes it until relied */
bool asking;       /* the app wants it */
#define believes (held && now < relied)

/* What sidecar B knows. */
byte seenB = 1, sinceB, reliedB = TTL - MARGIN;
bool heldB;
#define believesB (heldB && now < reliedB)

bool promise_1_exclusion, law_4_a_new_server_is_a_stranger, law_4_strays_are_given_up;
#define must(law, what) law = (what); assert(law)

/* Nothing that a new server grants is handed out for a TTL. */
#ifdef BREAK_A_NEW_SERVER_GRANTS_AT_ONCE
#define mayGrant(term, since) true
#else
#define mayGrant(term, since) (term == 1 || now >= since + TTL)
#endif

proctype Clock() {
end:	do
	:: d_step { now < HORIZON -> now++ }
	od
}

proctype Servers() {
end:	do
	:: d_step { term <= FAILOVERS && (holder[0] != holder[1] || ends[0] != ends[1]) -> /* a copy */
		holder[1 - master] = holder[master]; ends[1 - master] = ends[master] }
	:: d_step { term <= FAILOVERS -> master = 1 - master; term++ } /* PROMOTE */
	od
}

inline renewed() {
	if
	:: relied > now && sent + TTL - MARGIN > relied -> relied = sent + TTL - MARGIN
	:: else
	fi;
	/* While that server is master, the app relies on nothing that it does not have. */
	must(law_4_a_new_server_is_a_stranger, term != by || !believes || holder[master] == A);
	must(law_4_strays_are_given_up, term != by || held || asking || stray || holder[master] != A);
	sent = 0; by = 0; beating = false
}

proctype SidecarA() {
	byte sent, by;  /* of the heartbeat under way: when, and which term has answered */
	bool beating, stray, doubt, judged;
	bool met;       /* a stranger, since the lock was asked for */
	byte from;      /* which term has granted the lock */
end:	do
	:: d_step { relied > now && !beating -> beating = true; sent = now } /* BEAT */
	:: d_step { beating -> beating = false; sent = 0; by = 0; doubt = false } /* no answer */
	:: d_step { beating && by == 0 && ends[master] > now -> ends[master] = now + TTL; by = term } /* RENEW */

	:: atomic { by != 0 && !doubt ->
		if :: by != seen -> seen = by; since = now :: else fi;
		if
#ifdef BREAK_ANY_SERVER_IS_TRUSTED
		:: true -> trusted = by; renewed()
#else
#ifdef BREAK_A_SERVER_THAT_WAS_SEEN_IS_TRUSTED
		:: by == 3 -> trusted = by; renewed()
#endif
		:: by == trusted -> renewed()
		:: by != trusted && by == compared -> trusted = by; renewed()
		:: by != trusted && by != compared -> trusted = 0; compared = 0; doubt = true; met = true /* STRANGER */
#endif
		fi }

	:: atomic { doubt && term == by -> /* COMPARE: it is another trip */
		doubt = false; compared = by;
		if
		:: held && holder[master] != A -> held = false /* told as lost before the heartbeat counts */
#ifndef BREAK_STRAYS_ARE_KEPT
		:: !held && !asking && holder[master] == A -> stray = true
#endif
		:: else
		fi;
		renewed() } /* RENEWED */

	:: d_step { stray -> stray = false; if :: holder[master] == A -> holder[master] = NOBODY :: else fi } /* STRAY */

	:: d_step { relied > now && !held && !asking && !stray -> asking = true }
	:: d_step { asking && from == 0 && relied > now && ends[master] > now && holder[master] != B -> /* ASK */
		holder[master] = A; from = term; met = false }
	:: d_step { from != 0 && !judged -> /* ANSWERED: who has granted it? */
		if
		:: from == trusted && mayGrant(seen, since) -> judged = true
		:: else -> from = 0 /* it asks again */
		fi }
	:: atomic { judged -> /* GRANTED: a moment later */
		judged = false;
		if
#ifdef BREAK_A_GRANT_OUTLIVES_A_COMPARISON
		:: relied > now ->
#else
		:: relied > now && !met ->
#endif
			held = true; asking = false; from = 0;
			must(promise_1_exclusion, !believesB)
		:: else -> from = 0
		fi }

	:: d_step { held -> held = false; if :: holder[master] == A -> holder[master] = NOBODY :: else fi } /* release */
	od
}

proctype SidecarB() {
end:	do
	:: d_step { seenB != term || reliedB != now + TTL - MARGIN -> /* RENEW, STRANGER, COMPARE and RENEWED in one */
		if :: seenB != term -> seenB = term; sinceB = now :: else fi;
		if :: reliedB <= now || holder[master] != B -> heldB = false :: else fi;
		if :: !heldB && holder[master] == B -> holder[master] = NOBODY :: else fi;
		reliedB = now + TTL - MARGIN }
	:: atomic { (seenB == term && !heldB && now < reliedB && mayGrant(term, sinceB)
			&& (holder[master] != A || ends[master] <= now)) ->
		if :: holder[master] == A -> ends[master] = 0 :: else fi; /* lease.EXPIRE */
		holder[master] = B; heldB = true;
		must(promise_1_exclusion, !believes) }
	:: d_step { heldB -> heldB = false; if :: holder[master] == B -> holder[master] = NOBODY :: else fi }
	od
}

init {
	atomic {
		ends[0] = TTL; ends[1] = TTL;
		run Clock(); run Servers(); run SidecarA(); run SidecarB()
	}
}
