package io.github.locksidecar;

import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executor;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.Consumer;

/**
 * A lock that was granted. It belongs to whoever has this object, not to a thread: any thread may
 * ask it and release it.
 *
 * <pre>{@code
 * try (Hold hold = lock.acquire()) {
 *   hold.onLost(why -> worker.interrupt());
 *   store.write(order, hold.fence());
 * } // throws LockLostException where the lock was lost meanwhile
 * }</pre>
 *
 * <p>A hold may be lost before it is released, and that is never undone. Look with {@link #check}
 * before each write, send the {@link #fence} with it, and use the {@link #guard} where there is
 * one.
 */
public final class Hold implements AutoCloseable {
  private final Session session;
  private final Held held;
  private final Executor futures;
  private final AtomicBoolean released = new AtomicBoolean();
  private volatile boolean lostBefore; // it was, when it was released

  Hold(Session session, Held held, Executor futures) {
    this.session = session;
    this.held = held;
    this.futures = futures;
  }

  /** What is locked; of several, their names with commas. */
  public String resource() {
    return held.resource;
  }

  /** The sidecar's name for the hold, as in {@code locksidecar list}. */
  public String id() {
    return held.id;
  }

  /**
   * The fencing token: larger than that of every earlier exclusive grant of the resource. Send it
   * with every write, and let the receiver refuse a smaller one than it has seen. Of several
   * resources each has its own: see {@link #parts}.
   */
  public long fence() {
    return held.fence;
  }

  /** How it is locked. */
  public LockMode mode() {
    return session.holds().get(held, h -> h.mode);
  }

  /** A statement for the app's own transaction; only where the store is an SQL database. */
  public Optional<Guard> guard() {
    return Optional.ofNullable(session.holds().get(held, h -> h.guard));
  }

  /** Of several resources: the fence and the guard of each, in byte order of the names; else empty. */
  public List<Part> parts() {
    return session.holds().get(held, h -> h.parts);
  }

  /** Of a permit: which of them it is, from 0; no other one that is held has it. Else empty. */
  public OptionalInt slot() {
    return held.slot;
  }

  /** Of something that is done once: which attempt this is, from 1; else 0. */
  public int attempt() {
    return held.attempt;
  }

  /**
   * Of something that is done once: what became of the attempt before. Where that is {@link
   * Outcome.State#UNKNOWN}, ask first whether it was done.
   */
  public Optional<Outcome> previous() {
    return Optional.ofNullable(held.previous);
  }

  /**
   * Of something that is done once, where the store is an SQL database: records the success in the
   * app's own transaction, so that both are committed or neither.
   */
  public Optional<Guard> outcomeGuard() {
    return Optional.ofNullable(held.outcomeGuard);
  }

  /** Tells whether the store does not answer: nothing is lost yet, but begin nothing long. */
  public boolean inJeopardy() {
    return session.inJeopardy();
  }

  /**
   * How long the hold may be relied on without further news from the sidecar: zero when it is lost
   * or released. It is counted on this machine's boot-time clock from before the sidecar counted
   * it, so it is never too long, even when this process was stopped or the machine suspended. News
   * that come every third of the store's TTL prolong it.
   */
  public Duration validFor() {
    return isReleased() ? Duration.ZERO : Duration.ofNanos(session.holds().validFor(held));
  }

  /** Tells whether it is over though it was not released, or was before it was. */
  public boolean isLost() {
    return isReleased() ? lostBefore : session.holds().problem(held) != null;
  }

  /**
   * Returns only when the hold may be relied on now. Cheap: ask before every write.
   *
   * @throws LockLostException it is lost
   * @throws NotHolderException it was released, or detached
   */
  public void check() {
    if (isReleased()) {
      throw wasReleased();
    }
    LockLostException problem = session.holds().check(held);
    if (problem != null) {
      throw problem;
    }
  }

  private SidecarException wasReleased() {
    LockLostException problem = lostBefore ? session.holds().problem(held) : null;
    String how = held.detached ? "detached" : "released";
    String message = "the hold on \"" + held.resource + "\" was " + how + " before";
    return problem == null ? SidecarException.of("NOT_HOLDER", message, Map.of("lock_id", held.id)) : problem;
  }

  /**
   * Calls back once when the hold is lost: the sidecar said so, it was not heard of in time (by
   * this process's own clock), or the connection ended. It is called at once where that has
   * happened already, and not when the hold was released before. It runs on a thread of its own,
   * so it may wait.
   */
  public void onLost(Consumer<LockLostException> listener) {
    Objects.requireNonNull(listener, "listener must not be null");
    Runnable call =
        () -> {
          if (!isReleased()) {
            listener.accept(session.holds().problem(held));
          }
        };
    session.listen(held, new Held.Listener(this, call));
  }

  /**
   * Turns an exclusive hold into a shared one without letting go; the fence stays. Of a shared hold
   * it changes nothing.
   *
   * @throws LockLostException it is lost
   * @throws SidecarException the sidecar cannot be asked
   */
  public void downgrade() {
    check();
    answer(session.downgrade(held));
  }

  /**
   * Lets the hold end after a time from now (100 ms to 24 h), whatever its {@link
   * SidecarLock#withMaxHold maxHold} was before, and also where it had none. The store is not asked.
   *
   * @throws LockLostException it is lost
   * @throws SidecarException the sidecar cannot be asked
   */
  public void extend(Duration maxHold) {
    Objects.requireNonNull(maxHold, "maxHold must not be null");
    check();
    answer(session.extend(held, maxHold));
  }

  /**
   * Lets the lock live for a time of its own in the store (1 s to 24 h from now), whatever becomes of
   * this process and its sidecar. It must be {@link SidecarLock#detachable}, or {@link LockSidecar#attach
   * attached}. Whoever has the handle can attach it, with the same fence. This hold is over then, as after
   * {@link #close}, which does nothing any more, also where another thread calls it meanwhile.
   *
   * @throws InvalidRequestException the time is refused, or the lock is not detachable; it stays
   * @throws LimitExceededException too many are detached; it stays
   * @throws NotHolderException it was released, or detached, before
   * @throws LockLostException it is lost
   * @throws SidecarException after any other it is lost, and free soon: nobody has its handle
   */
  public Detached detach(Duration ttl) {
    Objects.requireNonNull(ttl, "ttl must not be null");
    check();
    held.detaching = true;
    Call c = session.detach(held, ttl);
    try {
      return new Detached(session.answer(c).object("detached"), BootClock.system(), c.sent);
    } catch (InvalidRequestException | LimitExceededException e) {
      held.detaching = false;
      throw e;
    } catch (NotHolderException | LockLostException e) {
      throw lostOr(e);
    }
  }

  /** Of something that is done once: records that it is done, and releases. It is not done again. */
  public void succeeded() {
    succeeded("");
  }

  /**
   * The same with a note for people and for those who ask again, at most 1 KiB.
   *
   * @throws LockLostException it was lost and somebody else has started: nothing is recorded
   * @throws StoreUnavailableException it may be recorded or not, and the hold stays: say it again
   * @throws SidecarUnavailableException the same, as long as the session lasts
   */
  public void succeeded(String note) {
    conclude(Outcome.State.SUCCEEDED, note);
  }

  /** Of something that is done once: records that nothing was done, and releases; as succeeded. */
  public void failed(String note) {
    conclude(Outcome.State.FAILED, note);
  }

  private void conclude(Outcome.State outcome, String note) {
    LockRequest.check("note", Objects.requireNonNull(note, "note must not be null"));
    answer(session.conclude(held, outcome, note));
    if (released.compareAndSet(false, true)) {
      lostBefore = session.holds().problem(held) != null;
      session.holds().forget(held, this);
      session.left(held);
    }
  }

  /** Waits for the answer. What it says of a loss, the hold knows by then. */
  private Json answer(Call c) {
    try {
      return session.answer(c);
    } catch (SidecarException e) {
      throw lostOr(e);
    }
  }

  /**
   * How many times the lock behind the hold must be released: more than once where its owner has
   * others; see {@link SidecarLock#withOwner}.
   */
  public int count() {
    return session.holds().get(held, h -> h.count);
  }

  /**
   * Releases the hold, as {@link #close} does, and is stricter.
   *
   * @return how many holds of the same owner are left
   * @throws LockLostException it was lost before: somebody else may have worked beside the app
   * @throws NotHolderException it was released before
   */
  public int release() {
    if (!over()) {
      throw wasReleased();
    }
    return (int) answer(askRelease()).object("released").number("count");
  }

  /**
   * Releases the hold. A second time it does nothing. It is not interrupted, and returns when the
   * sidecar has done it; of a lost hold at once.
   *
   * @throws LockLostException it was lost before: somebody else may have worked beside the app
   * @throws SidecarUnavailableException no answer within 5 s; the sidecar carries it out when it reads
   *     it, or the hold ends with the session
   */
  @Override
  public void close() {
    if (over()) {
      Call c = askRelease();
      try {
        answer(c);
      } catch (NotHolderException e) {
        if (!held.detaching) {
          throw e;
        } // a detach came first, and its answer may come later
      }
    }
  }

  /** Releases the hold; the future ends as {@link #close} does. */
  public CompletableFuture<Void> closeAsync() {
    if (!over()) {
      return CompletableFuture.completedFuture(null);
    }
    Call c;
    try {
      c = askRelease();
    } catch (LockLostException e) {
      return CompletableFuture.failedFuture(e);
    }
    session.expect();
    return c.answer.handleAsync(
        (m, e) -> {
          SidecarException why = e == null ? null : lostOr(Answers.again(e));
          if (why != null && !(why instanceof NotHolderException && held.detaching)) {
            throw why;
          }
          return null;
        },
        futures);
  }

  /** Tells whether it is over by the app's own wish: released, or detached. */
  boolean isReleased() {
    return released.get() || held.detached;
  }

  /** Ends it for the app. False: it was over before. */
  private boolean over() {
    return !held.detached && released.compareAndSet(false, true);
  }

  /** Asks for the release, once; of a lost hold too: that ends the grace. */
  private Call askRelease() {
    LockLostException problem = session.holds().problem(held);
    lostBefore = problem != null;
    session.holds().forget(held, this);
    Call c = session.release(held);
    if (problem != null) {
      throw problem;
    }
    return c;
  }

  /** Why a request about the hold failed: its loss says more than that it is not held. */
  private SidecarException lostOr(SidecarException e) {
    LockLostException problem = session.holds().problem(held);
    lostBefore |= problem != null;
    return problem == null ? e : problem;
  }

  @Override
  public String toString() {
    String state = held.detached ? "detached" : released.get() ? "released" : isLost() ? "lost" : "valid for " + validFor();
    return "Hold[" + held.resource + " " + mode() + " fence=" + held.fence + " " + state + "]";
  }
}
