/*
 * queue.pml: who is granted next, and with which fence.
 *
 * Three requests for one resource, each exclusive or shared. Each comes, holds, and
 * ends: it is released, given up, forced out, downgraded, or its lease dies without
 * a word. Each step of the store is atomic. The store's clock may stand still, be set
 * back, or lose its memory of the last fence, though not both of these at once.
 *
 * Steps that the code names: queue.PUT, queue.REMOVE, queue.NEXT, queue.DOWNGRADE,
 * queue.DEAD, queue.FENCE.
 */

#define N 3
#define CLOCK 4 /* up to which the store's clock goes */

mtype = { OUT, WAITS, HOLDS, GONE };
mtype state[N] = OUT;
bool writer[N];
bool dead[N];   /* its lease is over */
byte ticket[N]; /* its place in the queue */
byte tickets;

byte clock = 1, last; /* the store's, and its largest fence so far */
bool setBack, forgot;
byte highest, highestX; /* for the assertion: of all grants, of exclusive ones */

bool promise_1_exclusion, promise_2_fences_grow, promise_7_first_come_first_served,
	promise_7_readers_together, promise_8_no_free_lock_is_waited_for;
#define must(law, what) law = (what); assert(law)

#define holds(i) (state[i] == HOLDS && !dead[i])
#define waits(i) (state[i] == WAITS && !dead[i])
#define before(i, j) (state[i] == WAITS && !dead[i] && ticket[i] < ticket[j])

/* Whether the holders leave room for i. */
#define room(i, j) (i == j || state[j] != HOLDS || (!writer[i] && !writer[j]))
#ifdef BREAK_HOLDERS_ARE_IGNORED
#define admitted(i) true
#else
#define admitted(i) (room(i, 0) && room(i, 1) && room(i, 2))
#endif
/* Whether nobody stands before i. */
#ifdef BREAK_READERS_PASS_WRITERS
#define first(i) (!writer[i] || !(before(0, i) || before(1, i) || before(2, i)))
#else
#define first(i) !(before(0, i) || before(1, i) || before(2, i))
#endif

#define may(i) (waits(i) && admitted(i) && first(i))

inline fence(i) { /* FENCE */
#if defined(BREAK_FENCES_BY_THE_CLOCK)
	last = clock;
#elif defined(BREAK_FENCES_BY_THE_COUNTER)
	last = last + 1;
#else
	last = (clock > last + 1 -> clock : last + 1);
#endif
	must(promise_2_fences_grow, last > highestX && (!writer[i] || last > highest));
	if :: last > highest -> highest = last :: else fi;
	if :: writer[i] && last > highestX -> highestX = last :: else fi
}

inline grant(i) {
	must(promise_7_first_come_first_served, !(before(0, i) || before(1, i) || before(2, i)));
	state[i] = HOLDS;
	fence(i);
	must(promise_1_exclusion,
		!(holds(0) && holds(1) && (writer[0] || writer[1])) &&
		!(holds(0) && holds(2) && (writer[0] || writer[2])) &&
		!(holds(1) && holds(2) && (writer[1] || writer[2])))
}

/* A reader at the front of the queue. */
#define waiting(i) (waits(i) && !writer[i] && !(before(0, i) || before(1, i) || before(2, i)))

/* What is dead goes first; then the front of the queue, as far as it may. */
inline next() { /* NEXT */
#ifndef BREAK_THE_DEAD_BLOCK
	if :: dead[0] && state[0] != OUT -> state[0] = GONE :: else fi; /* DEAD */
	if :: dead[1] && state[1] != OUT -> state[1] = GONE :: else fi;
	if :: dead[2] && state[2] != OUT -> state[2] = GONE :: else fi;
#endif
#ifdef BREAK_ONE_IS_GRANTED
	if
#else
	do
#endif
	:: may(0) -> grant(0)
	:: !may(0) && may(1) -> grant(1)
	:: !may(0) && !may(1) && may(2) -> grant(2)
#ifdef BREAK_ONE_IS_GRANTED
	:: else
	fi
#else
	:: else -> break
	od
#endif
}

/* After each step. */
inline settled() {
	must(promise_7_readers_together,
		!(holds(0) && !writer[0] && waiting(1)) && !(holds(0) && !writer[0] && waiting(2)) &&
		!(holds(1) && !writer[1] && waiting(0)) && !(holds(1) && !writer[1] && waiting(2)) &&
		!(holds(2) && !writer[2] && waiting(0)) && !(holds(2) && !writer[2] && waiting(1)));
	must(promise_8_no_free_lock_is_waited_for,
		holds(0) || holds(1) || holds(2) || !(waits(0) || waits(1) || waits(2)))
}
proctype Clock() {
end:	do
	:: d_step { clock < CLOCK -> clock++ }
	:: d_step { !setBack && !forgot && clock > 1 -> setBack = true; clock = clock - 1 }
	:: d_step { !forgot && !setBack && clock > last -> forgot = true; last = 0 }
	od
}

proctype Request(byte i) {
	if :: writer[i] = true :: skip fi;
	atomic { ticket[i] = tickets; tickets++; state[i] = WAITS; next(); settled() } /* PUT */
end:	do
	:: atomic { state[i] == WAITS || state[i] == HOLDS -> state[i] = GONE; /* REMOVE */
#ifndef BREAK_NO_HAND_OVER
		next();
#endif
		settled(); break }
	:: atomic { holds(i) && writer[i] -> writer[i] = false; /* DOWNGRADE */
#ifndef BREAK_A_DOWNGRADE_GRANTS_NOBODY
		next();
#endif
		settled() }
	:: atomic { !dead[i] && (state[i] == WAITS || state[i] == HOLDS) -> dead[i] = true; break }
	od
}

/* The store looks for dead leases by itself, or because somebody asks. */
proctype Sweep() {
end:	do
	:: atomic { (dead[0] && state[0] != GONE) || (dead[1] && state[1] != GONE) || (dead[2] && state[2] != GONE) -> next(); settled() }
	od
}

init { atomic { run Clock(); run Sweep(); run Request(0); run Request(1); run Request(2) } }
