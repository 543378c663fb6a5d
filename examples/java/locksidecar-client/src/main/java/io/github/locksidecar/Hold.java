package io.github.locksidecar;

import java.time.Duration;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.Consumer;
import locksidecar.v1.Locksidecar.SessionResponse;

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
  private final AtomicBoolean released = new AtomicBoolean();

  Hold(Session session, Held held) {
    this.session = session;
    this.held = held;
  }

  /** What is locked. */
  public String resource() {
    return held.resource;
  }

  /** The sidecar's name for the hold, as in {@code locksidecar list}. */
  public String id() {
    return held.id;
  }

  /**
   * The fencing token: larger than that of every earlier exclusive grant of the resource. Send it
   * with every write, and let the receiver refuse a smaller one than it has seen.
   */
  public long fence() {
    return held.fence;
  }

  /** How it is locked. */
  public LockMode mode() {
    return session.holds().mode(held);
  }

  /** A statement for the app's own transaction; only where the store is an SQL database. */
  public Optional<Guard> guard() {
    return Optional.ofNullable(session.holds().guard(held));
  }

  /**
   * How long the hold may be relied on without further news from the sidecar: zero when it is lost
   * or released. It is counted on this machine's boot-time clock from before the sidecar counted
   * it, so it is never too long, even when this process was stopped or the machine suspended. News
   * that come every third of the store's TTL prolong it.
   */
  public Duration validFor() {
    return released.get() ? Duration.ZERO : Duration.ofNanos(session.holds().validFor(held));
  }

  /** Tells whether it is over though it was not released. */
  public boolean isLost() {
    return !released.get() && session.holds().problem(held) != null;
  }

  /**
   * Returns only when the hold may be relied on now.
   *
   * @throws LockLostException it is lost
   * @throws IllegalStateException it was released
   */
  public void check() {
    if (released.get()) {
      throw new IllegalStateException("the hold on \"" + held.resource + "\" was released");
    }
    LockLostException problem = session.holds().check(held);
    if (problem != null) {
      throw problem;
    }
  }

  /**
   * Calls back once when the hold is lost: the sidecar said so, it was not heard of in time (by
   * this process's own clock), or the connection ended. It is called at once where that has
   * happened already, and not when the hold was released before. It runs on a thread of its own,
   * so it may wait.
   */
  public void onLost(Consumer<LockLostException> listener) {
    Runnable call =
        () -> {
          if (!released.get()) {
            listener.accept(session.holds().problem(held));
          }
        };
    session.holds().listen(held, new Held.Listener(this, call));
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
    Call c = session.downgrade(held);
    try {
      Answers.await(c, Session.OVERDUE, session.socket());
    } catch (SidecarException e) {
      throw lostOr(e);
    }
  }

  /**
   * How many times the lock behind the hold must be released: more than once where its owner has
   * others; see {@link SidecarLock#withOwner}.
   */
  public int count() {
    return session.holds().count(held);
  }

  /**
   * Releases the hold, as {@link #close} does, and is stricter.
   *
   * @return how many holds of the same owner are left
   * @throws SidecarException with the reason {@code NOT_HOLDER}: it was released before
   */
  public int release() {
    Call c = askRelease();
    if (c == null) {
      String message = "the hold on \"" + held.resource + "\" was released before";
      throw SidecarException.of("NOT_HOLDER", message, Map.of("lock_id", held.id));
    }
    try {
      return Answers.await(c, Session.OVERDUE, session.socket()).getReleased().getCount();
    } catch (SidecarException e) {
      throw lostOr(e);
    }
  }

  /**
   * Releases the hold. A second time it does nothing. It is not interrupted, and returns when the
   * sidecar has done it; of a lost hold at once.
   *
   * @throws LockLostException it was lost before: somebody else may have worked beside the app
   * @throws SidecarUnavailableException no answer within 5 s; the hold ends with its lease
   */
  @Override
  public void close() {
    if (!released.get()) {
      try {
        release();
      } catch (SidecarException e) {
        if (!e.reason().equals("NOT_HOLDER")) { // another thread was faster
          throw e;
        }
      }
    }
  }

  /** Releases the hold; the future ends as {@link #close} does. */
  public CompletableFuture<Void> closeAsync() {
    Call c;
    try {
      c = askRelease();
    } catch (LockLostException e) {
      return CompletableFuture.failedFuture(e);
    }
    if (c == null) {
      return CompletableFuture.completedFuture(null);
    }
    return c.answer
        .orTimeout(Session.OVERDUE, TimeUnit.NANOSECONDS)
        .handleAsync(
            (SessionResponse m, Throwable e) -> {
              try {
                if (e != null) {
                  throw e instanceof TimeoutException
                      ? Answers.overdue(session.socket())
                      : Answers.again(e);
                }
                Answers.checked(m);
                return null;
              } catch (SidecarException refused) {
                throw lostOr(refused);
              }
            },
            session.callbacks());
  }

  boolean isReleased() {
    return released.get();
  }

  /** Asks for the release; null where it was asked for before. */
  private Call askRelease() {
    if (!released.compareAndSet(false, true)) {
      return null;
    }
    LockLostException problem = session.holds().problem(held);
    session.holds().forget(held, this);
    Call c = session.release(held); // of a lost hold too: that ends the grace
    if (problem != null) {
      throw problem;
    }
    return c;
  }

  /** Why a request about the hold failed: its loss says more than that it is not held. */
  private SidecarException lostOr(SidecarException e) {
    LockLostException problem = session.holds().problem(held);
    return problem == null ? e : problem;
  }

  @Override
  public String toString() {
    String state = released.get() ? "released" : isLost() ? "lost" : "valid for " + validFor();
    return "Hold[" + held.resource + " " + mode() + " fence=" + held.fence + " " + state + "]";
  }
}
