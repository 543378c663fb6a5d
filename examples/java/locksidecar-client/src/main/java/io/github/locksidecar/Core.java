package io.github.locksidecar;

import java.io.ByteArrayOutputStream;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Executor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.ReentrantLock;
import java.util.stream.Stream;

/**
 * The protocol of one session, without any input or output. Bytes that the sidecar sent go in by
 * {@link #feed}, what is to be sent comes out of {@link #output}, and {@link #look} notices what time
 * has brought. In between stand the rules of the API: which answer is whose, and what is left behind
 * when nobody wants it any more; what is held and until when is in {@link Holds}.
 *
 * <p>Everything here is called with mu held, unless it says otherwise. mu is never held while
 * anything waits, nor while code of the app runs.
 */
final class Core {
  /** How long an answer may take, beyond the wait of an acquire, before the sidecar is taken to be frozen. */
  static final long OVERDUE = TimeUnit.SECONDS.toNanos(5);

  /** After so long without a word, somebody who waits makes the session ask whether the sidecar is there. */
  static final long PING_AFTER = TimeUnit.SECONDS.toNanos(5);

  /** Where a look comes so much too late, what is unread and what the sidecar had no room to write have so long more. */
  static final long MORE = TimeUnit.SECONDS.toNanos(1);

  /** After so long it is tried again to tell the app what there was no thread for. */
  static final long RETRY = TimeUnit.MILLISECONDS.toNanos(100);

  /** The sidecar ends a connection at a longer line, and with it all that the session holds. */
  private static final int LONGEST_LINE = 64 << 10;

  final ReentrantLock mu = new ReentrantLock();
  final Holds holds;

  private final String sidecar; // for messages
  private final BootClock clock;
  private final Executor callbacks;
  private final Runnable onDraining;

  private final Lines lines = new Lines();
  private final Map<String, Call> calls = new HashMap<>();
  private final Acquires acquires = new Acquires();
  private final ByteArrayOutputStream out = new ByteArrayOutputStream();
  private volatile boolean hasOutput;
  private long bytes; // that were ever to be sent
  private long lastId;
  private boolean opened;
  private boolean jeopardy;
  private boolean draining;
  private SidecarException end; // why the session ended; null: it has not
  private int single; // answers in a row after which none was due

  // By System.nanoTime.
  private long heard;
  private long looksAtCalls;
  private Call ping;
  private long keepAliveEvery; // 0: the session has no ttl
  private long keepAliveAt;

  Core(String sidecar, BootClock clock, Executor callbacks, Runnable onDraining) {
    this.sidecar = sidecar;
    this.clock = clock;
    this.callbacks = callbacks;
    this.onDraining = onDraining;
    this.holds = new Holds(mu, clock, callbacks, acquires);
    this.heard = clock.nanoTime();
    this.looksAtCalls = heard + OVERDUE;
  }

  // --- requests

  /** Sends it. What goes wrong is told as its answer. */
  void post(Call c) {
    if (end != null) {
      c.unsent = true;
      c.answer.completeExceptionally(end);
      return;
    }
    c.posted = clock.nanoTime();
    if (c.wanted == null || acquires.enter(c)) {
      send(c);
    } else {
      boundWait(c);
    }
  }

  /** Sees to it that a wait ends in time while it queues here. */
  private void boundWait(Call c) {
    if (c.wanted.patience() > 0) {
      looksAtCalls = Math.min(looksAtCalls, c.posted + c.wanted.patience());
    }
  }

  private void sendQueued() {
    for (Call c = acquires.next(); c != null; c = acquires.next()) {
      send(c);
    }
  }

  /** Sends it; an acquire is on its way for Acquires. */
  private void send(Call c) {
    if (c.wanted != null && c.wanted.patience() > 0) { // it may have queued here
      long left = c.wanted.patience() - (clock.nanoTime() - c.posted);
      c.body.with("wait", Times.format(Duration.ofNanos(Math.max(left, TimeUnit.MILLISECONDS.toNanos(1)))));
    }
    String id = Long.toString(++lastId, Character.MAX_RADIX);
    byte[] line = Lines.of(id, c.kind, c.body);
    if (line.length > LONGEST_LINE) {
      String message = "the request is longer than " + LONGEST_LINE + " bytes";
      c.answer.completeExceptionally(SidecarException.invalid(c.kind, message));
      if (c.wanted != null) {
        acquires.answered(c);
      }
      return;
    }
    c.id = id;
    c.sent = clock.atLeast();
    calls.put(id, c);
    out.writeBytes(line);
    bytes += line.length;
    c.sentAt = bytes;
    hasOutput = true;
  }

  /** Sends the release of what an acquire got. It is over for the app from now on. */
  Call release(Held h) {
    Call c = Call.about(h, "release", new Json());
    post(c);
    holds.left(h);
    return c;
  }

  /**
   * Makes sure that nobody keeps what nobody waits for. A second time it does nothing.
   *
   * <p>What was attached is for the next one who has the handle: the sidecar detaches it again when
   * the call is cancelled.
   */
  void abandon(Call c) {
    if (c.abandoned || end != null) { // when the session ends, the sidecar releases everything
      return;
    }
    c.abandoned = true;
    if (c.wanted != null && acquires.drop(c)) {
      return;
    }
    if (c.held != null && !c.attaches()) { // and the caller had left before
      release(c.held);
    } else if (c.held != null || calls.get(c.id) == c) { // else it was refused
      post(Call.plain("cancel", new Json().with("requestId", c.id)));
      if (c.held != null) {
        holds.left(c.held);
      }
    }
  }

  /** From now on the sidecar is told every third of the time that this process lives. */
  void keepAlive(Duration ttl) {
    keepAliveEvery = Math.max(1, Times.nanos(ttl) / 3);
    keepAliveAt = clock.nanoTime() + keepAliveEvery;
  }

  /** Tells whether there is something to be sent. It needs no mu. */
  boolean hasOutput() {
    return hasOutput;
  }

  /** Takes what is to be sent. */
  byte[] output() {
    byte[] all = out.toByteArray();
    out.reset();
    hasOutput = false;
    return all;
  }

  // --- what the sidecar says

  /** The first n bytes of an array have come. */
  void feed(byte[] data, int n) {
    heard = clock.nanoTime();
    try {
      lines.feed(data, n, line -> take(Json.parse(line)));
    } catch (RuntimeException e) { // no JSON, or a field of another kind
      String message = "what answers at " + sidecar + " is no sidecar, or another one than this client knows: " + e;
      end(new SidecarUnavailableException(Loss.GONE, message, e), Loss.GONE, message);
    }
  }

  private void take(Json m) {
    if (end != null) {
      return;
    }
    if (m.text("requestId").isEmpty()) {
      if (m.has("event")) {
        single = 0;
        event(m.object("event"));
      } else if (m.has("error")) { // its last word
        SidecarException why = SidecarException.read(m.object("error"));
        end(why, Loss.GONE, why.getMessage());
      }
      return;
    }
    Call c = calls.remove(m.text("requestId"));
    if (c == null) {
      return;
    }
    if (m.has("error")) {
      SidecarException why = SidecarException.read(m.object("error"));
      if (isTooMany(c, why)) {
        queueAgain(c, why);
        return; // one that is answered makes room
      }
      refused(c, why);
    } else {
      answered(c, m);
    }
    if (c.wanted != null) {
      acquires.answered(c);
      holds.answered();
      sendQueued();
    }
    single = isDue() ? 0 : single + 1;
  }

  /** Tells whether an answer is still to come. */
  boolean isDue() {
    return !calls.isEmpty();
  }

  /** How many answers have come one at a time: nothing else came meanwhile, and no other was due. */
  int single() {
    return single;
  }

  /** Counts them again, after so many others. */
  void countSingle(int after) {
    single = -after;
  }

  /** Tells whether the sidecar takes fewer acquires at a time than are on their way. */
  private boolean isTooMany(Call c, SidecarException why) {
    String limit = why.metadata().getOrDefault("limit", "");
    return c.wanted != null
        && !c.abandoned
        && acquires.size() > 1
        && why instanceof LimitExceededException
        && (limit.equals("waiters") || limit.equals("requests in flight"));
  }

  private void queueAgain(Call c, SidecarException why) {
    String max = why.metadata().getOrDefault("max", "");
    acquires.refused(c, max.matches("[0-9]{1,9}") ? Integer.parseInt(max) : 0);
    c.id = "";
    c.sentAt = Long.MAX_VALUE; // the sidecar knows nothing of it: another session will do
    boundWait(c);
  }

  private void refused(Call c, SidecarException why) {
    if (c.about != null) {
      holds.refused(c.about, why);
    }
    if (c.detaches() && why instanceof StoreUnavailableException) {
      holds.loseUnknown(c.about, "the store did not answer when it was to be detached");
    }
    c.answer.completeExceptionally(why);
  }

  private void answered(Call c, Json m) {
    if (m.has("opened")) {
      opened = true;
      holds.opened(c.sent, m.object("opened"));
    } else if (m.has("granted")) {
      c.held = holds.granted(c, m.object("granted"));
      if (c.abandoned && c.attaches()) {
        holds.left(c.held); // it has been cancelled
      } else if (c.abandoned) {
        release(c.held);
      }
    } else if (m.has("downgraded")) {
      holds.downgraded(c, m.object("downgraded"));
    } else if (m.has("extended")) {
      holds.extended(c, m.object("extended"));
    } else if (m.has("detached")) {
      holds.detached(c.about);
      if (c.answer.isDone()) { // nobody waits for the handle any more
        post(Call.plain("releaseHandle", new Json().with("handle", m.object("detached").text("handle"))));
      }
    }
    c.answer.complete(m);
  }

  private void event(Json e) {
    if (e.has("lease")) {
      holds.lease(e.object("lease"));
      jeopardy = e.object("lease").flag("jeopardy");
    } else if (e.has("lost")) {
      holds.lost(e.object("lost"));
    } else if (e.has("draining") && !draining) {
      draining = true;
      callbacks.execute(onDraining);
    }
  }

  boolean isOpened() {
    return opened;
  }

  boolean inJeopardy() {
    return jeopardy;
  }

  boolean isDraining() {
    return draining;
  }

  // --- the end

  /** Why the session has ended; null: it has not. */
  SidecarException end() {
    return end;
  }

  /** Ends the session, of which so many bytes were sent; see end. */
  boolean end(SidecarException why, String lostReason, String message, long sent) {
    if (end == null) {
      waiting().forEach(c -> c.unsent = c.sentAt > sent);
    }
    return end(why, lostReason, message);
  }

  /** Ends the session once: later reasons do not count. Everything is lost, and nobody waits any more. */
  private boolean end(SidecarException why, String lostReason, String message) {
    if (end != null) {
      return false;
    }
    end = why;
    holds.end(lostReason, message);
    List<Call> waiting = waiting();
    calls.clear();
    waiting.forEach(c -> c.answer.completeExceptionally(why));
    return true;
  }

  /** All that are not answered. */
  private List<Call> waiting() {
    return Stream.concat(calls.values().stream(), acquires.queued().stream()).toList();
  }

  // --- time

  /** This process stood still: the sidecar had no room to write all, and has a little longer for the rest. */
  void standStill() {
    looksAtCalls = clock.nanoTime() + MORE;
  }

  /** Notices what has come to its end; after how many nanoseconds to look again. */
  long look() {
    boolean told = Later.again();
    if (end != null) {
      return OVERDUE;
    }
    if (clock.atLeast() >= holds.looksAt()) {
      holds.look();
    }
    long now = clock.nanoTime();
    if (keepAliveEvery != 0 && keepAliveAt - now <= 0) {
      keepAliveAt = now + keepAliveEvery;
      post(Call.plain("keepAlive", new Json()));
    }
    if (looksAtCalls - now <= 0) {
      lookAtCalls(now);
    }
    long next = Math.min(holds.looksAt() - clock.atLeast(), told ? looksAtCalls - now : Math.min(RETRY, looksAtCalls - now));
    return Math.max(0, keepAliveEvery == 0 ? next : Math.min(next, keepAliveAt - now));
  }

  /**
   * Finds answers that are overdue, and waits without an end at a sidecar that is frozen. No answer is
   * overdue sooner than after OVERDUE, so nobody who sends a call has to wake the thread that looks.
   */
  private void lookAtCalls(long now) {
    looksAtCalls = now + OVERDUE;
    boolean waits = false;
    for (Call c : waiting()) {
      long limit = c.overdueAfter;
      if (c.answer.isDone()) {
        continue; // given up before
      }
      if (limit != 0 && c.posted + limit - now <= 0) {
        giveUp(c, c.wanted != null && acquires.isQueued(c) ? full() : silent());
        continue;
      }
      waits |= c.wanted != null;
      if (limit != 0) {
        looksAtCalls = Math.min(looksAtCalls, c.posted + limit);
      }
    }
    for (Call c : acquires.queued()) {
      long patience = c.wanted.patience();
      if (patience > 0 && c.posted + patience - now <= 0) {
        String message = "the wait is over: too many of this process wait before this one";
        giveUp(c, SidecarException.of("WAIT_TIMEOUT", message, Map.of("resource", c.wanted.resource())));
      } else if (patience > 0) {
        looksAtCalls = Math.min(looksAtCalls, c.posted + patience);
      }
    }
    if (ping != null && ping.answer.isDone()) {
      if (ping.answer.isCompletedExceptionally()) {
        waits = false;
        waiting().stream().filter(c -> c.wanted != null).forEach(c -> giveUp(c, silent()));
      }
      ping = null;
    }
    if (waits && ping == null && now - heard >= PING_AFTER) {
      ping = Call.plain("keepAlive", new Json());
      post(ping);
    }
  }

  private SidecarException silent() {
    return SidecarUnavailableException.silent("the sidecar at " + sidecar);
  }

  /** Of a try that has queued here for as long as the sidecar may take to answer one. */
  private SidecarException full() {
    String message = "more of this process wait than the sidecar takes at a time, and none of them was answered";
    return SidecarException.of("LIMIT_EXCEEDED", message, Map.of("limit", "waiters", "max", Integer.toString(acquires.most())));
  }

  private void giveUp(Call c, SidecarException why) {
    if (!c.answer.completeExceptionally(why)) {
      return;
    }
    if (c.wanted != null) {
      abandon(c);
    } else if (c.detaches()) {
      holds.loseUnknown(c.about, "nobody waited for it to be detached");
    }
  }
}
