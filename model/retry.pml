/*
 * retry.pml: requests without an answer, copies that arrive late, and giving up.
 *
 * A lease asks for one hold as often as it likes, and then ends it, as often as it
 * takes. Of each request the answer may be lost, and what was not answered may
 * arrive later, though not after LATE. The hold can also be forced out with grace 0,
 * before its holder is told.
 *
 * Steps that the code names: retry.ASK, retry.ASKED, retry.WITHDRAW,
 * retry.WITHDRAWN, retry.UNANSWERED, retry.COPY, retry.FORCE.
 */

#define LATE    2 /* ticks: how late a copy can arrive */
#define HORIZON 9
#if defined(BREAK_NO_TOMBSTONE)
#define TOMBSTONE 0
#elif defined(BREAK_SHORT_TOMBSTONE)
#define TOMBSTONE 1
#else
#define TOMBSTONE 3 /* how long the store remembers an id that was given up */
#endif

byte now;

/* What the store knows: how often the hold is there, which must be once at most, and
   until when its id is remembered as given up. */
byte stored, buried;

/* What the lease knows. */
bool asked;          /* it has asked at least once */
bool asking, ending; /* requests under way */
bool unsure;         /* with the one that ends the hold: the store must remember the id */
bool copies;         /* some request had no answer */
bool forced, told;   /* the hold was forced out; the lease has heard of it */
bool overlapped;     /* for the assertion: two were, at once */
bool held;           /* it was granted, and its caller relies on it */
bool leaving;        /* an end of it had no answer */
bool done;           /* for the lease the hold is over, and nothing more will be sent */

/* Until when a copy may arrive; 0: there is none. */
byte lateAsk, lateEnd;

bool promise_1_a_hold_stays, promise_9_nothing_is_left, promise_9_a_retry_finds_its_grant, law_6_one_call_at_a_time;
#define must(law, what) law = (what); assert(law)

inline carryOutAsk() {
	if
	:: buried > now /* given up */
#ifdef BREAK_A_RETRY_IS_ANOTHER_REQUEST
	:: else -> stored++
#else
	:: else -> stored = 1
#endif
	fi;
	must(promise_9_a_retry_finds_its_grant, stored <= 1);
	must(law_6_one_call_at_a_time, !(done && stored > 0 && overlapped));
	must(promise_9_nothing_is_left, !(done && stored > 0))
}

inline carryOutEnd(remember) {
	if :: stored > 0 -> stored-- :: else fi;
	if :: remember && now + TOMBSTONE > buried -> buried = now + TOMBSTONE :: else fi
}

proctype Clock() {
end:	do
	:: d_step { now < HORIZON -> now++ }
	od
}

proctype Lease() {
end:	do
#ifdef BREAK_ASKED_WHILE_IT_IS_GIVEN_UP
	:: d_step { !asking && !ending && !done && !told -> asking = true; asked = true } /* ASK */
#else
	:: d_step { !asking && !ending && !done && !told && !leaving -> asking = true; asked = true } /* ASK */
#endif
#ifdef BREAK_CALLS_OVERLAP
	:: d_step { asked && !ending && !done -> ending = true; held = false; unsure = copies; overlapped = asking } /* WITHDRAW */
#else
	:: d_step { asked && !asking && !ending && !done -> ending = true; held = false; unsure = copies } /* WITHDRAW */
#endif

	/* UNANSWERED, whether or not the store has carried it out: the copy may come. */
	:: d_step { asking -> asking = false; copies = true; lateAsk = now + LATE + 1 }
	:: d_step { ending -> ending = false; leaving = true; copies = true; lateEnd = now + LATE + 1 }

	:: d_step { forced && !told -> told = true }
#ifdef BREAK_A_FORCED_HOLD_IS_NOT_WITHDRAWN
	:: d_step { told && !asking && !ending -> done = true }
#endif
	od
}

proctype Store() {
end:	do
	:: atomic { asking -> carryOutAsk(); asking = false; held = stored > 0 } /* ASKED */
	:: atomic { ending -> carryOutEnd(unsure); ending = false; done = true } /* WITHDRAWN */

	:: atomic { lateAsk > now -> carryOutAsk(); if :: lateAsk = 0 :: skip fi } /* COPY, of one or of several */
	:: atomic { lateEnd > now -> must(promise_1_a_hold_stays, !(held && stored > 0 && !overlapped)); carryOutEnd(false); lateEnd = 0 }

	:: d_step { stored > 0 && !forced -> forced = true; stored = 0 } /* FORCE */
	od
}

init { atomic { run Clock(); run Lease(); run Store() } }
