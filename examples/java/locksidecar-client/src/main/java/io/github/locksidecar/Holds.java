package io.github.locksidecar;

import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Executor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.ReentrantLock;
import java.util.function.Function;
import java.util.function.ToLongFunction;

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

  /** So many losses are kept for grants that come after them. */
  private static final int MOST_EARLY = 10_000;

  private final ReentrantLock mu;
  private final BootClock clock;
  private final Executor callbacks;
  private final Acquires acquires;

  private final SidecarClock sidecarClock = new SidecarClock();
  private final Map<String, Held> holds = new HashMap<>();

  /** Losses of locks whose grants may still be on their way to another thread's acquire. */
  private final Map<String, Json> early = new LinkedHashMap<>();

  /** How many listeners the holds have. */
  private int listeners;

  /** See silentAt. */
  private long slack;

  /** How much longer than a hold may be relied on the store keeps others out. */
  private long margin;

  /** The last news of the lease: when they were counted, on the sidecar's clock, and their end, on ours. */
  private long newsCounted = Long.MIN_VALUE;

  private long newsUntil;

  /** When the next end may have come; on our clock. */
  private long looksAt = Long.MAX_VALUE;

  /** Takes what stands unread. It is not called with mu held. */
  private Runnable catchUp = () -> {};

  Holds(ReentrantLock mu, BootClock clock, Executor callbacks, Acquires acquires) {
    this.mu = mu;
    this.clock = clock;
    this.callbacks = callbacks;
    this.acquires = acquires;
  }

  /** Lets what stands unread be taken before a hold that somebody asks about is found to be over. */
  void catchUpBy(Runnable takesWhatIsUnread) {
    catchUp = takesWhatIsUnread;
  }

  // --- what the sidecar says

  void opened(long sent, Json opened) {
    sidecarClock.answered(sent, opened.nanos("countedAt"));
    margin = opened.nanos("leaseMargin");
    slack = Math.min(MAX_SLACK, margin / 2);
  }

  /** An acquire was answered, and what the answer says was noted. */
  void answered() {
    if (acquires.size() == 0) {
      early.clear();
    }
  }

  Held granted(Call c, Json grant) {
    long counted = grant.nanos("countedAt");
    sidecarClock.answered(c.sent, counted);
    Held h = holds.get(grant.text("lockId"));
    if (h == null) {
      h = new Held(grant);
      holds.put(h.id, h);
    } else {
      h.update(grant);
    }
    h.count++;
    h.until = Math.max(h.until, sidecarClock.until(counted, grant.nanos("validFor")));
    prolong(h); // news may overtake the grant
    if (c.wanted.maxHold() != null) {
      endBy(h, sidecarClock.until(counted, Times.nanos(c.wanted.maxHold())));
    }
    endByHandle(h, grant);
    Json lost = early.get(h.id);
    if (lost != null) {
      lose(h, lossOf(h, lost));
    } else {
      lookAt(silentAt(h));
    }
    return h;
  }

  private static void endBy(Held h, long limit) {
    h.limit = h.limit == 0 ? limit : Math.min(h.limit, limit);
  }

  /** What is attached ends with the time of its handle, whatever news of the lease say. */
  private void endByHandle(Held h, Json grant) {
    if (grant.has("endsIn")) {
      endBy(h, sidecarClock.until(grant.nanos("countedAt"), grant.nanos("endsIn")));
    }
  }

  /** News are for what was held when they were counted: not for what was over then, or granted later. */
  private void prolong(Held h) {
    if (h.counted <= newsCounted && sidecarClock.until(newsCounted, 0) < h.until) {
      h.until = Math.max(h.until, newsUntil);
    }
  }

  /** One who has entered a hold has left: from now on nobody relies on it for him. */
  void left(Held h) {
    if (--h.count <= 0) {
      holds.remove(h.id, h);
    }
  }

  void downgraded(Call c, Json grant) {
    sidecarClock.answered(c.sent, grant.nanos("countedAt"));
    c.about.update(grant);
  }

  void extended(Call c, Json grant) {
    long counted = grant.nanos("countedAt");
    sidecarClock.answered(c.sent, counted);
    Held h = c.about;
    h.limit = sidecarClock.until(counted, c.body.nanos("maxHold"));
    endByHandle(h, grant);
    h.until = Math.max(h.until, sidecarClock.until(counted, grant.nanos("validFor")));
    if (holds.containsKey(h.id)) {
      lookAt(silentAt(h));
    }
  }

  /** It lives by a time of its own now, and is nobody's hold. */
  void detached(Held h) {
    h.detached = true;
    h.count = 0;
    dropListeners(h);
    holds.remove(h.id, h);
  }

  void lease(Json lease) {
    newsCounted = lease.nanos("countedAt");
    newsUntil = sidecarClock.until(newsCounted, lease.nanos("validFor"));
    holds.values().forEach(this::prolong);
  }

  void lost(Json lost) {
    if (acquires.size() > 0) { // also of a known hold: who re-enters it may have a grant on its way
      early.put(lost.text("lockId"), lost);
      if (early.size() > MOST_EARLY) {
        early.remove(early.keySet().iterator().next()); // the oldest
      }
    }
    Held h = holds.get(lost.text("lockId"));
    if (h != null) {
      lose(h, lossOf(h, lost));
    }
  }

  /** What the answer to a request about a hold says of it: a loss may be heard there first. */
  void refused(Held h, SidecarException why) {
    if (why instanceof LockLostException e) {
      lose(h, Loss.of(h, e.lostReason().isEmpty() ? "UNKNOWN" : e.lostReason(), e.getMessage(), 0));
    } else if (why instanceof NotHolderException && h.count > 0) {
      loseUnknown(h, why.getMessage());
    }
  }

  /** Nobody knows what has become of it. */
  void loseUnknown(Held h, String message) {
    lose(h, Loss.of(h, "UNKNOWN", message, 0));
  }

  /** The session ends, and with it every hold. */
  void end(String reason, String message) {
    for (Held h : List.copyOf(holds.values())) {
      lose(h, Loss.of(h, reason, message, 0));
    }
    looksAt = Long.MAX_VALUE;
  }

  // --- the end of a hold

  private Loss lossOf(Held h, Json l) {
    long graceEnd = sidecarClock.until(l.nanos("countedAt"), l.nanos("grace"));
    boolean named = !h.parts.isEmpty() && l.has("resource"); // of several the sidecar names the one
    return new Loss(
        named ? l.text("resource") : h.resource,
        h.id,
        named ? l.number("fence") : h.fence,
        l.text("reason"),
        l.text("message"),
        graceEnd);
  }

  /** Its end is there, and the sidecar has not said why. */
  private Loss silence(Held h) {
    if (h.limit != 0 && silentAt(h) >= h.limit) {
      return Loss.of(h, "MAX_HOLD", "it was held longer than its maxHold", 0);
    }
    return Loss.of(h, Loss.SILENT, "the sidecar was not heard of in time", endOf(h) + margin);
  }

  /** Marks a hold as lost, for good. */
  private void lose(Held h, Loss loss) {
    if (h.loss != null) {
      return;
    }
    h.loss = loss;
    holds.remove(h.id, h);
    h.listeners.forEach(l -> callbacks.execute(l.call()));
    dropListeners(h);
  }

  private void dropListeners(Held h) {
    listeners -= h.listeners.size();
    h.listeners.clear();
  }

  /** Tells whether somebody is to be told of a loss. */
  boolean areListened() {
    return listeners > 0;
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

  /** Sees to it that the end of a hold is noticed. */
  private void lookAt(long moment) {
    looksAt = Math.min(looksAt, Math.min(moment, clock.atLeast() + MAX_LOOK));
  }

  /** When to look at the latest. */
  long looksAt() {
    return looksAt;
  }

  /** Finds the holds that nothing was heard of for too long. */
  void look() {
    looksAt = Long.MAX_VALUE;
    long now = clock.atMost();
    for (Held h : List.copyOf(holds.values())) {
      long at = silentAt(h);
      if (at <= now) {
        lose(h, silence(h));
      } else {
        lookAt(at);
      }
    }
  }

  // --- what a Hold asks; these take mu themselves

  /** How long the hold may be relied on without further news; 0 when it is lost. */
  long validFor(Held h) {
    judge(h, this::silentAt);
    mu.lock();
    try {
      return h.loss != null || h.count == 0 ? 0 : Math.max(0, endOf(h) - clock.atMost());
    } finally {
      mu.unlock();
    }
  }

  /** Why the hold is lost; null when it is not. */
  LockLostException problem(Held h) {
    return judge(h, this::silentAt);
  }

  /** The same for one who is about to rely on it: its end is the end, whatever may be said yet. */
  LockLostException check(Held h) {
    return judge(h, this::endOf);
  }

  /**
   * Whether it is lost, also by the clock. Where this process stood still past the end, the sidecar has kept
   * the hold alive meanwhile, and said so: what stands unread is taken before that is called silence.
   */
  private LockLostException judge(Held h, ToLongFunction<Held> end) {
    for (long takenBy = Long.MIN_VALUE; ; ) {
      mu.lock();
      try {
        if (h.loss == null && h.count > 0 && end.applyAsLong(h) <= takenBy) {
          lose(h, silence(h));
        }
        long now = h.loss == null && h.count > 0 ? clock.atMost() : Long.MIN_VALUE;
        if (end.applyAsLong(h) > now) {
          return h.loss == null ? null : new LockLostException(h.loss, clock);
        }
        takenBy = now; // once more: what has come by this moment counts, however late this thread goes on
      } finally {
        mu.unlock();
      }
      catchUp.run();
    }
  }

  /** Tells of the loss, at once where it has happened already. */
  void listen(Held h, Held.Listener listener) {
    mu.lock();
    try {
      if (h.loss == null) {
        h.listeners.add(listener);
        listeners++;
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
      int before = h.listeners.size();
      h.listeners.removeIf(l -> l.hold() == hold);
      listeners -= before - h.listeners.size();
    } finally {
      mu.unlock();
    }
  }

  /** What a hold is right now. */
  <T> T get(Held h, Function<Held, T> what) {
    mu.lock();
    try {
      return what.apply(h);
    } finally {
      mu.unlock();
    }
  }
}
