/*
 * kept.pml: what the store keeps though nobody has it.
 *
 * A lease has a hold with a min_hold, or one that it detaches. Then the first and a second lease may
 * attach it by its handle, each under an id of its own, take it over from each other, release it, and
 * die. Of each request, copies may arrive as often and as late as they like. Somebody else wants the
 * lock all the time.
 *
 * Steps that the code names: kept.RELEASE, kept.KEEP, kept.OVER, kept.DETACH,
 * kept.ATTACH.
 */

#define KEPT    2 /* ticks: a min_hold, and the time of a detached hold */
#define HORIZON 5 /* ticks */

#define NOBODY 2 /* who has it, other than a lease */
#define NONE   3 /* no id: it is free */

byte now;

/* What the store knows. */
bool detachable; /* or it has a min_hold */
byte has;        /* the lease that has it, or NOBODY */
byte id;         /* of the hold: 0 of its grant; 1 and 2 where a lease has attached it; or NONE */
byte until;      /* its moment: until then it is kept */
bool lives[2];   /* leases */
bool taken[3];   /* ids from which the hold was taken over */
bool other;      /* somebody else has the lock */

/* What was asked, by the id of the hold: from then on a copy may arrive at any time. */
bool detaches, attaches[3], releases[3];

/* For the assertions. */
byte promised; /* until when the store has promised to keep it */
bool lost[3];  /* ids that had it attached, and from which it was taken over */

bool promise_1_exclusion, promise_14_min_hold, promise_15_detached, promise_15_a_takeover_stays;
#define must(law, what) law = (what); assert(law)

#define leaseOf(i) (i == 2 -> 1 : 0)

/* The hold is gone. By right, where who has it, or had it last, has asked for that; or where
   nobody has it and its moment has come. */
inline free(right) {
	if
	:: detachable -> must(promise_15_detached, (right) || has == NOBODY && now >= promised)
	:: else -> must(promise_14_min_hold, now >= promised)
	fi;
	has = NOBODY; id = NONE
}

/* Who has it lets go of it, or its lease is over. */
inline letGo() {
	if
#if defined(BREAK_A_RELEASE_ENDS_A_MIN_HOLD)
	:: !detachable && lives[has] -> free(false)
#endif
#if defined(BREAK_A_DEAD_LEASE_ENDS_IT)
	:: !lives[has] -> free(false)
#else
	:: now < until -> has = NOBODY /* KEEP */
#endif
	:: now >= until -> free(true)
	fi
}

proctype Clock() {
end:	do
	:: d_step { now < HORIZON -> now++ }
	od
}

/* The two sidecars: each asks for what it likes, and dies when it likes. */
proctype Sidecars() {
	byte i;
end:	do
	:: d_step { detachable -> detaches = true }
	:: d_step { detaches -> attaches[1] = true }
	:: d_step { detaches -> attaches[2] = true }
	:: releases[0] = true
	:: d_step { attaches[1] -> releases[1] = true }
	:: d_step { attaches[2] -> releases[2] = true }
	:: atomic { lives[0] -> lives[0] = false; if :: has == 0 -> letGo() :: else fi }
	:: atomic { lives[1] -> lives[1] = false; if :: has == 1 -> letGo() :: else fi }
	od
}

/* Each step is one request, or a copy of it. */
proctype Store() {
	byte i;
end:	do
	:: atomic { detaches && id == 0 && has == 0 -> /* DETACH */
		until = now + KEPT; promised = until; has = NOBODY }

	:: atomic { (attaches[1] && lives[0] || attaches[2] && lives[1]) && (id != 0 || has == NOBODY) -> /* ATTACH, where it was detached */
		if
		:: attaches[1] && lives[0] -> i = 1
		:: attaches[2] && lives[1] -> i = 2
		fi;
		if
#ifdef BREAK_A_LATE_COPY_ENDS_IT
		:: id == i && has == leaseOf(i) && now >= until -> free(false)
#endif
		:: id == i && has == leaseOf(i) -> skip /* asked again, or a copy */
#ifndef BREAK_A_TAKEOVER_IS_FORGOTTEN
		:: taken[i] -> skip
#endif
#ifdef BREAK_A_HANDLE_OUTLIVES_ITS_HOLD
		:: !taken[i] && id != i ->
#else
		:: !taken[i] && id != i && id != NONE && now < until ->
#endif
			must(promise_1_exclusion, !other);
			if :: has != NOBODY -> taken[id] = true; lost[id] = true :: else fi;
			id = i; has = leaseOf(i)
#ifdef BREAK_A_TAKEOVER_IS_FORGOTTEN
		:: taken[i] && id != i && id != NONE && now < until ->
			must(promise_15_a_takeover_stays, !lost[i]);
			id = i; has = leaseOf(i)
#endif
		:: else
		fi;
		i = 0 }

	:: atomic { id != NONE && (releases[0] || releases[1] || releases[2]) -> /* RELEASE, by who has it, or had it last */
		if
		:: releases[0] -> i = 0
		:: releases[1] -> i = 1
		:: releases[2] -> i = 2
		fi;
		if
		:: id == i && detachable && i != 0 -> free(true) /* also where its lease was over before */
		:: id == i && i == 0 && has == 0 && detachable -> free(true) /* it was not detached yet */
		:: id == i && has == 0 && !detachable -> letGo()
#ifdef BREAK_ENDED_BY_WHO_HAD_IT
		:: id != i && detachable && i != 0 -> free(false)
#endif
		:: else
		fi;
		i = 0 }

#ifdef BREAK_FREED_WHILE_IT_IS_ATTACHED
	:: atomic { detachable && until > 0 && id != NONE && now >= until -> free(false) }
#endif
	:: atomic { id != NONE && has == NOBODY && now >= until -> free(false) } /* OVER */

	:: d_step { id == NONE && !other -> other = true }
	od
}

init {
	atomic {
		lives[0] = true; lives[1] = true;
		if
		:: detachable = true /* it has no moment until it is detached */
		:: until = KEPT; promised = until
		fi;
		run Clock(); run Sidecars(); run Store()
	}
}
