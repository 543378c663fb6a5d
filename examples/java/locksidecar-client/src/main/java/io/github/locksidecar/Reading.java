package io.github.locksidecar;

import java.util.concurrent.ForkJoinWorkerThread;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.ReentrantLock;

/**
 * Who reads the connection: one thread at a time, the session's own or that of a caller.
 *
 * <p>To hand an answer to a caller takes one wake-up of a thread more than the trip itself. So where callers
 * come one at a time, and nobody listens for a loss, the session's thread lets them read by themselves, and
 * only looks now and then whether they still come. What reaches the client between two calls waits for two
 * pauses at most. Who reads takes all that comes, whoever it is for.
 *
 * <p>Everything is called with the session's mu held.
 */
final class Reading {
  /**
   * Long enough that the session's thread costs next to nothing, and short beside any time that a loss leaves an app.
   * Tests have longer ones: on a busy machine nobody comes within 5 ms.
   */
  static volatile long pause = TimeUnit.MILLISECONDS.toNanos(5);

  /** After so many answers in a row, none of them due at the same time as another, callers read. */
  private static final int FEW_SINGLE = 4;

  /** So many more, where some come that do not read. */
  private static final int MANY_OTHERS = 100;

  private final Core core;
  private final Condition wake; // makes the session's thread look
  private Call caller; // who reads until its answer has come; null: the session's thread, or nobody
  private boolean free; // nobody reads, and a caller may
  private boolean asleep; // the session's thread looks no more, until it is woken
  private boolean wanted; // the session's thread, by one who does not read
  private int turns; // of callers, so far

  Reading(Core core, ReentrantLock mu) {
    this.core = core;
    this.wake = mu.newCondition();
  }

  /** The session's thread, after it has read: where callers come one at a time it waits until it has to read again. */
  void leave() {
    if (core.end() != null || core.single() < FEW_SINGLE || core.holds.areListened()) {
      return;
    }
    if (wanted) {
      takeBack();
      return;
    }
    free = true;
    for (int seen = -1; ; ) {
      await();
      boolean idle = turns == seen;
      seen = turns;
      if (caller == null && (idle || isDue())) {
        takeBack();
        return;
      }
      asleep = caller != null && idle; // it waits for long
    }
  }

  /** From now on the session's thread reads, for longer where it was wanted. */
  private void takeBack() {
    free = false;
    core.countSingle(wanted ? MANY_OTHERS : 0);
    wanted = false;
  }

  private void await() {
    try {
      if (asleep) {
        wake.await();
      } else {
        wake.awaitNanos(pause);
      }
    } catch (InterruptedException e) {
      // nobody has a reason to, and it looks again
    }
  }

  /** Tells whether somebody other than a caller that reads wants to hear from the sidecar. */
  private boolean isDue() {
    return core.isDue() || core.holds.areListened() || core.end() != null;
  }

  /** Makes this thread the one who reads, where it may and nobody does. */
  boolean begin(Call c) {
    if (!free || c.answer.isDone()) {
      return false;
    }
    if (mustNotBlock(Thread.currentThread())) {
      expect();
      return false;
    }
    free = false;
    caller = c;
    turns++;
    return true;
  }

  /** Tells whether the thread's executor would lack it: there, who waits does so in java.util.concurrent. */
  private static boolean mustNotBlock(Thread t) {
    if (t instanceof ForkJoinWorkerThread) {
      return true;
    }
    ThreadGroup group = t.getThreadGroup();
    return group != null && group.getName().equals("VirtualThreads"); // that of all of them, says JEP 444
  }

  /** Ends the turn of a caller. */
  void passOn() {
    caller = null;
    free = true;
    if (asleep || isDue()) {
      call();
    }
  }

  /** An answer is to come to one who does not read. */
  void expect() {
    wanted = true;
    call();
  }

  /** Makes the session's thread look who reads. */
  private void call() {
    asleep = false;
    wake.signal();
  }
}
