/*
 * told.pml: a loss reaches the app.
 *
 * A hold of a session is lost. Whatever blocks, the app hears of it: the log may
 * stand still for ever, another reader of the events may never read, and the app's
 * own connection may be cut, twice, before it has read what was written to it. Only
 * the app's release acknowledges the loss.
 *
 * Steps that the code names: told.LOSE, told.READ, told.WRITE, told.ACKNOWLEDGE.
 */

#define CUTS 2

bool lost;       /* the session knows it */
bool shown;      /* and shows it to every reader */
bool kept;       /* until it is acknowledged */
bool knows;      /* the app knows it */
byte cuts;

chan log = [1] of { bit };
chan slow = [1] of { bit };   /* of a reader who never reads: there is room for one */
chan app = [1] of { bit };    /* the app's connection */

/* Law 7: what is shown to every reader reaches the app, whatever becomes of its
   connection. Law 8: and it is shown, whatever becomes of everybody else. */
ltl law_7_a_loss_is_kept { [] (kept -> <> knows) }
ltl law_8_nothing_blocks_the_news { [] (lost -> <> shown) }

active proctype Session() {
	slow!0; /* older news, which nobody reads */
	log!0;
	lost = true; /* LOSE */
#ifdef BREAK_THE_LOG_COMES_FIRST
	log!1;
#endif
#ifdef BREAK_ONE_READER_AFTER_THE_OTHER
	slow!1;
#endif
	atomic { shown = true; kept = true };
	log!1 /* the line about it; whoever writes it may wait */
end:	skip
}

/* Serves the app's connection, and the next one after a cut. */
active proctype Reader() {
	bool read;
end:	do
	:: atomic { kept && !read && empty(app) -> read = true; app!1; /* READ, WRITE */
#ifdef BREAK_A_LOSS_IS_TOLD_ONCE
		kept = false
#endif
	}
	:: atomic { cuts < CUTS -> cuts++; read = false; if :: len(app) == 1 -> app?_ :: else fi }
	od
}

active proctype App() {
end:	do
	:: atomic { app?_ -> knows = true; kept = false } /* ACKNOWLEDGE: it stops, and releases */
	od
}

active proctype Log() {
end:	do
	:: log?_
	:: break /* it stands still */
	od;
end2:	false
}
