/*
 * lease.pml: a lease, its heartbeats, and its end.
 *
 * One sidecar has lease 0 and, once that is lost, lease 1; its app wants the lock,
 * and so does somebody else, with a lease that always lives. Any process may stand
 * still for as long as it likes while time goes on; requests and answers may be
 * late, overtake each other, or never arrive. The store's clock may be set back
 * once, and may gain on the sidecar's clock what the margin allows for.
 *
 * Steps that the code names: lease.BEAT, lease.RENEW, lease.EXPIRE, lease.RENEWED,
 * lease.ASK, lease.GRANT, lease.GRANTED, lease.NEWS.
 */

#define TTL     3 /* ticks; how often the sidecar beats is its own choice */
#define HORIZON 5 /* ticks */
#define BACK    1 /* by how much the store's clock is set back */
#ifdef BREAK_NO_MARGIN
#define MARGIN 0
#else
#define MARGIN 1 /* and by how much the store's clock may gain in all */
#endif

#define NOBODY 2
#define OTHER  3
#define NONE   2 /* no lease is left */

byte now = BACK;   /* the boot-time clock of the sidecar and its app */
byte store = BACK; /* the store's clock */
bool setBack, gained;

/* What the store knows. */
byte ends[2];         /* of each lease, on the store's clock; 0: unknown, or dead for good */
byte holder = NOBODY; /* a lease, or OTHER */
bool dead[2]; /* for the assertion: the lock was handed on because the lease was over */

/* What the sidecar knows. */
byte lease;     /* which one it uses */
byte relied[2]; /* until when each may be relied on, on its own clock */
bool held;

/* What the app knows: until when it may rely on the lock. */
byte until;
#define believes (until > now)

/* The assertions, by the names of the laws in docs/guarantees.md. */
bool promise_3_early_notice, law_3_death_is_final, law_5_deadlines_are_moments;
#define must(law, what) law = (what); assert(law)

/* What is on its way. */
chan beats = [2] of { bit /* lease */, byte /* sent */ };
chan beaten = [2] of { bit, byte, bool /* the lease lives */ };
chan ask = [1] of { bit };
chan granted = [1] of { bit };
chan news = [1] of { byte /* relied */, byte /* counted at */ };

proctype Clocks() {
end:	do
	:: d_step { now < HORIZON + BACK -> now++; store++ }
	:: d_step { !gained && now < HORIZON + BACK -> gained = true; store++ }
	:: d_step { !setBack -> setBack = true; store = store - BACK }
	od
}

/* Each step of the store is one request. */
proctype Store() {
	bit l;
	byte sent;
end:	do
	:: d_step { len(beats) == 2 -> beats?l,sent; beats!l,sent; l = 0; sent = 0 } /* one overtakes */

	:: atomic { nempty(beats) -> /* RENEW */
		beats?l,sent;
		if
#ifdef BREAK_DEAD_LEASE_IS_RENEWED
		:: true ->
#else
		:: ends[l] > store ->
#endif
			must(law_3_death_is_final, !dead[l]);
			ends[l] = store + TTL; beaten!l,sent,true
		:: else -> ends[l] = 0; beaten!l,sent,false /* EXPIRE */
		fi;
		l = 0; sent = 0 }

	:: d_step { nempty(ask) -> /* ASK */
		ask?l;
		if
		:: ends[l] <= store || holder == OTHER -> skip
		:: else -> holder = l; granted!l /* GRANT; a retry finds its own */
		fi;
		l = 0 }

	:: atomic { holder < NOBODY && ends[holder] <= store -> /* EXPIRE: handed on */
		must(promise_3_early_notice, !believes);
#ifndef BREAK_DEATH_IS_FORGOTTEN
		ends[holder] = 0;
#endif
		dead[holder] = true;
		holder = OTHER }
	od
}

inline lost() { /* nothing goes over to the next lease */
	held = false;
	if
	:: lease == 0 -> /* opened in one trip; it counts from before that was sent */
		lease = 1; ends[1] = store + TTL; relied[1] = now + TTL - MARGIN
	:: else -> lease = NONE
	fi
}

inline tell() { /* what the app has not read yet is replaced */
	if :: len(news) == 1 -> news?_,_ :: else fi;
	news!relied[lease],now
}

proctype Sidecar() {
	bit l;
	byte sent;
	bool lives;
end:	do
	:: d_step { lease != NONE && relied[lease] <= now -> lost() }

	:: d_step { lease != NONE && relied[lease] > now && len(beats) + len(beaten) < 2 -> /* BEAT */
		beats!lease,now }

	:: d_step { nempty(beaten) -> /* RENEWED */
		beaten?l,sent,lives;
		if
		:: l != lease -> skip
		:: l == lease && (!lives || relied[l] <= now) -> lost() /* it says so, or says it too late */
		:: else ->
#ifdef BREAK_COUNTED_FROM_THE_ANSWER
			sent = now;
#endif
			if :: sent + TTL - MARGIN > relied[l] -> relied[l] = sent + TTL - MARGIN :: else fi;
			if :: held -> tell() :: else fi
		fi;
		l = 0; sent = 0; lives = false }

	:: d_step { lease != NONE && !held && len(ask) + len(granted) == 0 -> ask!lease }

	:: d_step { nempty(granted) -> /* GRANTED */
		granted?l;
		if
#ifdef BREAK_GRANT_GOES_TO_THE_NEXT_LEASE
		:: lease != NONE && relied[lease] > now -> held = true; tell()
#else
		:: l == lease && relied[l] > now -> held = true; tell()
#endif
		:: else /* worth nothing */
		fi;
		l = 0 }
	od
}

proctype App() {
	byte moment, counted;
end:	do
	:: atomic { nempty(news) -> /* NEWS */
		news?moment,counted;
#ifdef BREAK_DURATIONS_TRAVEL
		until = now + moment - counted;
#else
		until = moment;
#endif
		must(law_5_deadlines_are_moments, until <= relied[0] || until <= relied[1]);
		must(promise_3_early_notice, !(believes && holder == OTHER)); /* no news come too late */
		moment = 0; counted = 0 }
	od
}

init {
	atomic {
		ends[0] = store + TTL; relied[0] = now + TTL - MARGIN;
		run Clocks(); run Store(); run Sidecar(); run App()
	}
}
