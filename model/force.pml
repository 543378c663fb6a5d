/*
 * force.pml: a forced release with grace, and how the holder hears of it.
 *
 * An administrator forces the release of a hold, and later once more with a shorter
 * grace, or with none. The push that tells it may be lost, requests and answers too;
 * any process may stand still while time goes on. All clocks agree here: lease.pml
 * has those that do not.
 *
 * Steps that the code names: force.FORCE, force.PUSHED, force.TELL, force.BEAT,
 * force.RENEW, force.RENEWED, force.RELEASE, force.HANDON.
 */

#define TTL     4
#define MARGIN  1
#define HORIZON 8
#define LONG    3 /* the grace of the first forced release */
#define SHORT   1 /* that of the second; or 0 for either */

#define NO 99 /* no grace, no moment */

byte now;

/* What the store knows of the hold. */
bool stored = true;      /* it is there */
byte ends = TTL;         /* its lease */
byte asked = NO;         /* the shortest grace of a forced release */
bool open;               /* that the sidecar has not acknowledged */
byte over = NO;          /* when an acknowledged grace ends */

/* What the sidecar knows. */
byte relied = TTL - MARGIN;
byte knows = NO;         /* the shortest grace that it has heard of */
byte moment = NO;        /* when that is over, counted from when it heard */
bool told, acked;

/* What the app knows. */
bool works = true;
byte stop = NO;          /* it was told that others may be let in from then on */
#define believes (works && now < relied && now < stop)

/* For the assertions. */
byte owed = NO;          /* the soonest end of a grace, each counted from when the sidecar knew */
bool promise_3_early_notice, law_1_the_heartbeat_is_the_truth, law_2_grace_from_when_it_was_known;
#define must(law, what) law = (what); assert(law)

chan push = [1] of { byte };
chan beat = [1] of { byte /* sent */, byte /* acknowledged: a grace, or NO */ };
chan beaten = [1] of { byte, byte, byte /* news: a grace, or NO */, byte /* and the truth that the sidecar did not know */ };
chan releases = [1] of { bit };

proctype Clock() {
end:	do
	:: d_step { now < HORIZON -> now++ }
	od
}

inline force(g) { /* FORCE */
	if
	:: stored && g < asked ->
		asked = g; open = true;
#ifdef BREAK_FORCERS_CLOCK
		if :: now + g < over -> over = now + g :: else fi;
#endif
		if :: g == 0 -> stored = false :: else fi;
		if :: len(push) == 0 -> push!g :: else fi
	:: else
	fi
}

proctype Administrator() {
	if
	:: d_step { force(LONG) }
	:: skip
	fi;
	if
	:: d_step { force(SHORT) }
	:: d_step { force(0) }
	:: skip
	fi
}

proctype Store() {
	byte sent, ack, news;
end:	do
	:: d_step { nempty(push) -> push?_ } /* lost */
	:: d_step { nempty(beat) -> beat?_,_ }
	:: d_step { nempty(beaten) -> beaten?_,_,_,_ }

	:: d_step { nempty(releases) -> releases?_; stored = false; open = false; asked = NO } /* RELEASE */

	:: d_step { nempty(beat) && empty(beaten) && now < ends -> /* RENEW */
		beat?sent,ack;
		ends = now + TTL;
		if
		:: stored && ack != NO && now + ack < over -> over = now + ack
		:: else
		fi;
		if :: open && ack <= asked -> open = false :: else fi;
		news = NO;
		if :: open -> news = asked :: else fi;
		ack = (knows > asked -> asked : NO);
#ifdef BREAK_BEATS_TELL_NOTHING
		news = NO;
#endif
#ifdef BREAK_NEWS_ARE_TOLD_ONCE
		open = false;
#endif
#ifdef BREAK_GONE_IS_ONLY_COUNTED
		/* The number of holds is all that tells it; another request under way makes
		   up for the one that is missing. */
		if :: news == 0 -> news = NO :: else fi;
#endif
		beaten!sent,NO,news,ack;
		sent = 0; ack = 0; news = 0 }

	:: atomic { stored && (now >= over || now >= ends) -> /* HANDON */
		must(law_2_grace_from_when_it_was_known, now >= owed || now >= ends);
		must(promise_3_early_notice, !believes);
		stored = false; open = false; asked = NO }
	od
}

inline hear(g) { /* a grace can become shorter, not longer */
	if
	:: g < knows ->
		knows = g; told = false; acked = false;
		if :: now + g < moment -> moment = now + g :: else fi;
		if :: moment < owed -> owed = moment :: else fi
	:: else
	fi
}

inline tell() { told = true; stop = moment }

proctype Sidecar() {
	byte sent, ack, news, truth;
end:	do
	:: d_step { nempty(push) -> push?news; hear(news); news = 0 } /* PUSHED */

	:: d_step { knows != NO && !told -> tell() } /* TELL */

	:: d_step { relied > now && empty(beat) && empty(beaten) -> /* BEAT */
#ifdef BREAK_ACKNOWLEDGED_BEFORE_IT_IS_TOLD
		beat!now,knows
#else
		beat!now,(told -> knows : NO)
#endif
	}

	:: atomic { nempty(beaten) -> /* RENEWED */
		beaten?sent,ack,news,truth;
		if
		:: relied <= now
		:: else ->
#ifndef BREAK_NEWS_AFTER_THE_RENEWAL
			hear(news);
			if :: knows != NO && !told -> tell() :: else fi;
#endif
			relied = (sent + TTL - MARGIN > relied -> sent + TTL - MARGIN : relied);
			must(law_1_the_heartbeat_is_the_truth, truth == NO || (told && knows <= truth));
#ifdef BREAK_NEWS_AFTER_THE_RENEWAL
			hear(news)
#endif
		fi;
		sent = 0; ack = 0; news = 0; truth = 0 }

	:: d_step { works && empty(releases) -> works = false; releases!0 } /* the app stops, and releases */
	od
}

init { atomic { run Clock(); run Administrator(); run Store(); run Sidecar() } }
