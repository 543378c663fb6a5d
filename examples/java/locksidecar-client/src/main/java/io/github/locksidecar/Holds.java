package io.github.locksidecar;

import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.Executor;
import java.util.concurrent.Future;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.ReentrantLock;
import locksidecar.v1.Locksidecar.Event;
import locksidecar.v1.Locksidecar.Grant;
import locksidecar.v1.Locksidecar.LeaseNews;
import locksidecar.v1.Locksidecar.Lost;
import locksidecar.v1.Locksidecar.LostReason;
import locksidecar.v1.Locksidecar.Mode;
import locksidecar.v1.Locksidecar.OpenSessionResponse;

/**
 * What one session holds, and until when, by our own clock. The package's part of it is called with
 * the session's mu held, unless it says otherwise.
 */
final class Holds {
  /** Java's timers stand still while the machine is suspended, and the clock of a hold does not. */
  private static final long MAX_LOOK = TimeUnit.SECONDS.toNanos(1);

  /**
   * How long the sidecar may take at most to say that maxHold is over. It keeps others out meanwhile and
   * tells for how much longer, which is better news than its silence.
   */
  private static final long MAX_SLACK = TimeUnit.MILLISECONDS.toNanos(250);

  private final ReentrantLock mu;
  private final BootClock clock;
  private final ScheduledExecutorService timer;
  private final Executor callbacks;

  private final SidecarClock sidecarClock = new SidecarClock();
  private final Map<String, Held> holds = new HashMap<>();

  /** Losses of locks whose grants may still be on their way to another thread's acquire. */
  private final Map<String, Lost> early = new HashMap<>();

  /** How many acquires are in flight. */
  private int asking;

  /** See silentAt. */
  private long slack;

  /** The last news of the lease: when they were counted, on the sidecar's clock, and their end, on ours. */
  private long newsCounted = Long.MIN_VALUE;

  private long newsUntil;

  private Future<?> look;
  private long looksAt;
  private boolean over;

  Holds(ReentrantLock mu, BootClock clock, ScheduledExecutorService timer, Executor callbacks) {
    this.mu = mu;
    this.clock = clock;
    this.timer = timer;
    this.callbacks = callbacks;
  }

  // --- what the sidecar says

  void opened(long sent, OpenSessionResponse o) {
    sidecarClock.answered(sent, o.getCountedAt());
    slack = Math.min(MAX_SLACK, SidecarClock.nanos(o.getLeaseMargin()) / 2); // the store keeps others out for the margin
  }

  /** An acquire is about to be sent. */
  void asked() {
    asking++;
  }

  /** An acquire was answered, and what the answer says was noted. */
  void answered() {
    if (--asking == 0) {
      early.clear();
    }
  }

  Held granted(Call c, Grant g) {
    sidecarClock.answered(c.sent, g.getCountedAt());
    long end = sidecarClock.until(g.getCountedAt(), g.getValidFor());
    long counted = SidecarClock.nanos(g.getCountedAt());
    Held h = holds.computeIfAbsent(g.getLockId(), id -> new Held(id, g.getResource(), g.getFence(), counted));
    h.count++;
    h.mode = modeOf(g);
    h.guard = guardOf(g);
    h.until = Math.max(h.until, end);
    prolong(h); // news may overtake the grant
    if (c.maxHold != 0) {
      long limit = end - SidecarClock.nanos(g.getValidFor()) + c.maxHold;
      h.limit = h.limit == 0 ? limit : Math.min(h.limit, limit);
    }
    Lost lost = early.get(h.id);
    if (lost != null) {
      lose(h, lossOf(h, lost));
    } else {
      lookAt(silentAt(h));
    }
    return h;
  }

  /** News are for what was held when they were counted: a later hold may be on another lease. */
  private void prolong(Held h) {
    if (newsCounted >= h.counted) {
      h.until = Math.max(h.until, newsUntil);
    }
  }

  /** A hold was released once. */
  void released(Held h) {
    if (--h.count <= 0) {
      holds.remove(h.id, h);
    }
  }

  void downgraded(Call c, Grant g) {
    sidecarClock.answered(c.sent, g.getCountedAt());
    Held h = holds.get(g.getLockId());
    if (h != null) {
      h.mode = modeOf(g);
      h.guard = guardOf(g);
    }
  }

  void news(Event e) {
    if (e.hasLease()) {
      LeaseNews n = e.getLease();
      newsCounted = SidecarClock.nanos(n.getCountedAt());
      newsUntil = sidecarClock.until(n.getCountedAt(), n.getValidFor());
      holds.values().forEach(this::prolong);
    } else if (e.hasLost()) {
      Lost lost = e.getLost();
      Held h = holds.get(lost.getLockId());
      if (h != null) {
        lose(h, lossOf(h, lost));
      } else if (asking > 0) {
        early.put(lost.getLockId(), lost);
      }
    }
  }

  /** The session ends, and with it every hold. */
  void end(String reason, String message) {
    over = true;
    for (Held h : holds.values().toArray(Held[]::new)) {
      lose(h, new Loss(h.resource, h.id, h.fence, reason, message, 0));
    }
    if (look != null) {
      look.cancel(false);
    }
  }

  private static LockMode modeOf(Grant g) {
    return g.getMode() == Mode.SHARED ? LockMode.SHARED : LockMode.EXCLUSIVE;
  }

  private static Guard guardOf(Grant g) {
    if (!g.hasGuard()) {
      return null;
    }
    return new Guard(g.getGuard().getDialect(), g.getGuard().getSql(), g.getGuard().getArgsList());
  }

  // --- the end of a hold

  private Loss lossOf(Held h, Lost l) {
    long graceEnd = sidecarClock.until(l.getCountedAt(), l.getGrace());
    return new Loss(h.resource, h.id, h.fence, l.getReason().name(), l.getMessage(), graceEnd);
  }

  /** Its end is there, and the sidecar has not said why. */
  private Loss silence(Held h) {
    if (h.limit != 0 && silentAt(h) >= h.limit) {
      return new Loss(h.resource, h.id, h.fence, LostReason.MAX_HOLD.name(), "it was held longer than its maxHold", 0);
    }
    return new Loss(h.resource, h.id, h.fence, Loss.SILENT, "the sidecar was not heard of in time", 0);
  }

  /** Marks a hold as lost, for good. */
  private void lose(Held h, Loss loss) {
    if (h.loss != null) {
      return;
    }
    h.loss = loss;
    holds.remove(h.id, h);
    h.listeners.forEach(l -> callbacks.execute(l.call()));
    h.listeners.clear();
  }

  /** When the hold is over if nothing is heard any more. */
  private long endOf(Held h) {
    return h.limit == 0 ? h.until : Math.min(h.until, h.limit);
  }

  /** When the sidecar's silence ends the hold: at its end, or soon after where that is by maxHold. */
  private long silentAt(Held h) {
    long end = endOf(h);
    // The grant was counted a little later than the limit began.
    return h.limit != 0 && end + slack >= h.limit ? end + slack : end;
  }

  /**
   * Sees to it that the end of a hold is noticed. One timer does for all: when it fires, it looks
   * at each.
   */
  private void lookAt(long moment) {
    long now = clock.atLeast();
    long at = Math.min(moment, now + MAX_LOOK);
    if (look != null) {
      if (looksAt <= at) {
        return;
      }
      look.cancel(false);
    }
    looksAt = at;
    look = timer.schedule(this::look, Math.max(0, at - now), TimeUnit.NANOSECONDS);
  }

  /** Finds the holds that nothing was heard of for too long. Takes mu itself. */
  private void look() {
    mu.lock();
    try {
      look = null;
      if (over) {
        return;
      }
      long now = clock.atMost();
      long next = Long.MAX_VALUE;
      for (Held h : holds.values().toArray(Held[]::new)) {
        long at = silentAt(h);
        if (at <= now) {
          lose(h, silence(h));
        } else {
          next = Math.min(next, at);
        }
      }
      if (!holds.isEmpty()) {
        lookAt(next);
      }
    } finally {
      mu.unlock();
    }
  }

  // --- what a Hold asks; these take mu themselves

  /** How long the hold may be relied on without further news; 0 when it is lost. */
  long validFor(Held h) {
    mu.lock();
    try {
      if (h.loss != null || h.count == 0) {
        return 0;
      }
      long now = clock.atMost();
      if (silentAt(h) <= now) {
        lose(h, silence(h));
      }
      return Math.max(0, endOf(h) - now);
    } finally {
      mu.unlock();
    }
  }

  /** Why the hold is lost; null when it is not. */
  LockLostException problem(Held h) {
    mu.lock();
    try {
      validFor(h);
      return h.loss == null ? null : new LockLostException(h.loss, clock);
    } finally {
      mu.unlock();
    }
  }

  /** The same for one who is about to rely on it: its end is the end, whatever may be said yet. */
  LockLostException check(Held h) {
    mu.lock();
    try {
      if (h.count > 0 && endOf(h) <= clock.atMost()) {
        lose(h, silence(h));
      }
      return problem(h);
    } finally {
      mu.unlock();
    }
  }

  /** Tells of the loss, at once where it has happened already. */
  void listen(Held h, Held.Listener listener) {
    mu.lock();
    try {
      if (h.loss == null) {
        h.listeners.add(listener);
        return;
      }
    } finally {
      mu.unlock();
    }
    callbacks.execute(listener.call());
  }

  /** Tells a hold nothing any more: others of the same owner may live on. */
  void forget(Held h, Hold hold) {
    mu.lock();
    try {
      h.listeners.removeIf(l -> l.hold() == hold);
    } finally {
      mu.unlock();
    }
  }

  int count(Held h) {
    mu.lock();
    try {
      return h.count;
    } finally {
      mu.unlock();
    }
  }

  LockMode mode(Held h) {
    mu.lock();
    try {
      return h.mode;
    } finally {
      mu.unlock();
    }
  }

  Guard guard(Held h) {
    mu.lock();
    try {
      return h.guard;
    } finally {
      mu.unlock();
    }
  }
}
