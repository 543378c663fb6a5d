package io.github.locksidecar;

import java.time.Duration;
import java.util.Objects;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.Lock;

/**
 * A distributed lock. It excludes the threads of this process, other processes, and other machines
 * alike. Objects of it are cheap, have no state of their own, and may be shared; two for the same
 * resource are one lock.
 *
 * <p>There are two ways to use it:
 *
 * <ul>
 *   <li><b>By the hold</b>: {@link #acquire}, {@link #tryAcquire}, {@link #acquireAsync} give a
 *       {@link Hold}, which any thread may release. Prefer it: a hold knows its fence and when it is
 *       lost.
 *   <li><b>As a {@link Lock}</b>: {@link #lock} and {@link #unlock} go by the thread. {@link #hold}
 *       gives the hold behind it.
 * </ul>
 *
 * <p><b>It is not reentrant</b>, unlike {@link java.util.concurrent.locks.ReentrantLock}: each acquire
 * and each {@code lock()} stands for itself, and a thread that asks for what it has waits for itself
 * ({@code tryLock()}: false). {@link #reentrant} gives the lock that is.
 *
 * <p>The memory effects are those of a Lock. All waits are served first come, first served, among
 * all processes; {@code tryLock()} does not barge in.
 *
 * <p>All methods throw {@link SidecarException} where the sidecar refuses or cannot be asked; with
 * an exception nothing is held and nothing is left in the queue. A wait without limit goes on
 * while the store is away, and ends with {@link SidecarUnavailableException} when the sidecar goes
 * away, or answers nothing any more: its place in the queue is lost then. The next call connects again.
 */
public final class SidecarLock implements Lock {
  private final LockSidecar sidecar;
  private final LockRequest request;

  /** Null: the thread. */
  private final String owner;

  SidecarLock(LockSidecar sidecar, LockRequest request, String owner) {
    this.sidecar = sidecar;
    this.request = request;
    this.owner = owner;
  }

  /** What it locks. */
  public String resource() {
    return request.resource();
  }

  /** How it locks. */
  public LockMode mode() {
    return request.mode();
  }

  /**
   * The same lock, whose holds end by themselves after a time (100 ms to 24 h): they are lost then,
   * so that an app that hangs does not keep others out.
   */
  public SidecarLock withMaxHold(Duration maxHold) {
    Objects.requireNonNull(maxHold, "maxHold must not be null");
    return new SidecarLock(sidecar, request.lasting(maxHold), owner);
  }

  /**
   * The same lock, whose holds keep others out for a time after the grant at least (100 ms to 24 h, at
   * most the {@link #withMaxHold maxHold}): also after the release, or the death of this process.
   * Only a forced release ends that. Not with several resources.
   */
  public SidecarLock withMinHold(Duration minHold) {
    Objects.requireNonNull(minHold, "minHold must not be null");
    return new SidecarLock(sidecar, request.keptFor(minHold), owner);
  }

  /**
   * The same lock, whose holds may be {@link Hold#detach detached}. Not with several resources, nor what is
   * reentrant, done once, or has a minHold.
   */
  public SidecarLock detachable() {
    return new SidecarLock(sidecar, request.leaving(), owner);
  }

  /**
   * The same lock, and reentrant, as {@link java.util.concurrent.locks.ReentrantLock}: who has it by
   * a reentrant request enters again at once, and it is free when all of these are released. Who that
   * is: the thread that asks, or the label of {@link #withOwner}; both only through the same {@link
   * LockSidecar}.
   */
  public SidecarLock reentrant() {
    return new SidecarLock(sidecar, request.reentering(), owner);
  }

  /** Tells whether it is. */
  public boolean isReentrant() {
    return request.reentrant();
  }

  /**
   * The same lock, asked for by a label (at most 128 bytes) instead of the thread. Lists show it, any
   * thread may unlock what was locked under it, and with {@link #reentrant} whoever asks under it
   * enters again.
   */
  public SidecarLock withOwner(String label) {
    Objects.requireNonNull(label, "owner must not be null");
    return new SidecarLock(sidecar, request.ownedBy(label), label);
  }

  /**
   * One of so many permits of the resource (1 to 1024): at most that many are held at the same time,
   * everywhere, and each has a {@link Hold#slot} of its own. All who ask give the same number.
   */
  public SidecarLock withLimit(int permits) {
    if (permits < 1) {
      throw SidecarException.invalid("limit", "limit must be 1 or more, and not " + permits);
    }
    if (mode() == LockMode.SHARED) {
      throw SidecarException.invalid("mode", "what has a limit cannot be SHARED: it is a PERMIT");
    }
    return new SidecarLock(sidecar, request.limited(permits), owner);
  }

  /** Tells whether somebody holds it, here or anywhere else. */
  public boolean isLocked() {
    return request.resources().stream().anyMatch(r -> sidecar.get(r).isHeld());
  }

  // --- by the hold

  /**
   * Waits for the lock.
   *
   * @throws InterruptedException the thread was interrupted; nothing is held, nothing is queued
   */
  public Hold acquire() throws InterruptedException {
    return take(request, label(), true);
  }

  /**
   * Waits for the lock, at most 24 h.
   *
   * @throws WaitTimeoutException the wait was in vain
   * @throws LockHeldException the wait is zero, and the lock not free
   * @throws InterruptedException the thread was interrupted; nothing is held, nothing is queued
   */
  public Hold acquire(Duration wait) throws InterruptedException {
    return take(waiting(wait), label(), true);
  }

  /** Takes the lock if it is free. */
  public Optional<Hold> tryAcquire() {
    try {
      return Optional.of(acquireNow());
    } catch (LockHeldException e) {
      return Optional.empty();
    }
  }

  /** Takes it as it is now, without waiting for others. */
  Hold acquireNow() {
    return takeUninterruptibly(request.waiting(Duration.ZERO), label());
  }

  /**
   * Waits for the lock, at most 24 h; empty where that was in vain.
   *
   * @throws InterruptedException the thread was interrupted; nothing is held, nothing is queued
   */
  public Optional<Hold> tryAcquire(Duration wait) throws InterruptedException {
    try {
      return Optional.of(acquire(wait));
    } catch (LockHeldException | WaitTimeoutException e) {
      return Optional.empty();
    }
  }

  /**
   * Asks for the lock without waiting for it. A {@link #reentrant} one needs a {@link #withOwner}: a
   * future belongs to no thread. When the future is cancelled, or completed by anybody
   * else, the wait ends and nothing is held. What depends on it ({@code thenApply} and so on) runs
   * on threads that may wait. Cancelling a dependent future does not cancel this one, as always.
   */
  public CompletableFuture<Hold> acquireAsync() {
    return sidecar.take(request.ownedBy(labelOfFuture()));
  }

  /** The same with a wait, which ends as in {@link #acquire(Duration)}. */
  public CompletableFuture<Hold> acquireAsync(Duration wait) {
    return sidecar.take(waiting(wait).ownedBy(labelOfFuture()));
  }

  private LockRequest waiting(Duration wait) {
    return request.waiting(Objects.requireNonNull(wait, "wait must not be null; the method without it waits without an end"));
  }

  private String label() {
    return owner == null ? Owned.label() : owner;
  }

  private String labelOfFuture() {
    if (owner != null) {
      return owner;
    }
    if (request.reentrant()) {
      throw new IllegalStateException("a future belongs to no thread: withOwner says who enters again");
    }
    return Owned.newLabel();
  }

  // --- as a Lock

  private Owned.Key key() {
    return new Owned.Key(request.resources(), owner == null ? Thread.currentThread() : owner);
  }

  /**
   * Waits for the lock, and is not interrupted. A thread that has it waits for itself; of a {@link
   * #reentrant} lock it enters again, and one that has the write lock may take the read lock too.
   *
   * @throws UpgradeRefusedException the lock is reentrant, and the thread has the read lock and asks
   *     for the write lock
   * @throws LockLostException the thread has the lock, and has lost it: unlock it first
   */
  @Override
  public void lock() {
    Owned.Key key = key();
    sidecar.owned().check(key);
    sidecar.owned().push(key, request.mode(), takeUninterruptibly(request, label()));
  }

  @Override
  public void lockInterruptibly() throws InterruptedException {
    enter(request);
  }

  private void enter(LockRequest q) throws InterruptedException {
    Owned.Key key = key();
    sidecar.owned().check(key);
    sidecar.owned().push(key, q.mode(), take(q, label(), true));
  }

  /**
   * Takes the lock if it is free. It asks the sidecar, which asks the store: that takes a moment,
   * and at most some seconds where one of the two does not answer. A thread that has the reentrant read
   * lock and asks for the write lock gets false, as from the JDK's.
   */
  @Override
  public boolean tryLock() {
    Owned.Key key = key();
    sidecar.owned().check(key);
    try {
      LockRequest q = request.waiting(Duration.ZERO);
      sidecar.owned().push(key, q.mode(), takeUninterruptibly(q, label()));
      return true;
    } catch (LockHeldException | UpgradeRefusedException e) {
      return false;
    }
  }

  /**
   * Waits for the lock, at most 24 h. A thread that has the reentrant read lock and asks for the write
   * lock would wait for itself: it gets false at once.
   */
  @Override
  public boolean tryLock(long time, TimeUnit unit) throws InterruptedException {
    Objects.requireNonNull(unit, "unit must not be null");
    try {
      enter(request.waiting(Duration.ofNanos(unit.toNanos(time))));
      return true;
    } catch (LockHeldException | WaitTimeoutException | UpgradeRefusedException e) {
      return false;
    }
  }

  /**
   * Releases what the thread has locked last with this mode. When it unlocks the write lock and
   * still has the read lock, the lock is downgraded without letting go.
   *
   * @throws IllegalMonitorStateException the thread has not locked it, or its hold was closed
   * @throws LockLostException the lock was lost meanwhile: somebody else may have worked beside the
   *     thread. It is unlocked nevertheless
   */
  @Override
  public void unlock() {
    Owned.Popped last = sidecar.owned().pop(key(), request.mode());
    if (last == null) {
      throw new IllegalMonitorStateException(notLocked());
    }
    try {
      if (request.mode() == LockMode.EXCLUSIVE && last.readsLeft()) {
        last.hold().downgrade();
      }
    } finally {
      last.hold().close();
    }
  }

  /**
   * The hold of the current thread's last {@link #lock}: its fence, its guard, its loss.
   *
   * @throws IllegalMonitorStateException the thread has not locked it
   */
  public Hold hold() {
    Hold h = sidecar.owned().peek(key(), request.mode());
    if (h == null) {
      throw new IllegalMonitorStateException(notLocked());
    }
    return h;
  }

  private String notLocked() {
    String who = owner == null ? "this thread" : "owner \"" + owner + "\"";
    return who + " has not locked \"" + request.resource() + "\" " + request.mode();
  }

  /**
   * Not supported: the waiters of a condition would be in other processes, and nothing tells them.
   *
   * @throws UnsupportedOperationException always
   */
  @Override
  public Condition newCondition() {
    throw new UnsupportedOperationException("a distributed lock has no conditions");
  }

  // --- both

  private Hold take(LockRequest q, String label, boolean interruptibly) throws InterruptedException {
    if (interruptibly && Thread.interrupted()) {
      throw new InterruptedException();
    }
    LockRequest r = q.ownedBy(label);
    while (true) {
      Session s = interruptibly ? Answers.getInterruptibly(sidecar.session()) : Answers.get(sidecar.session());
      Call c = s.acquire(r);
      boolean done = false;
      try {
        if (interruptibly) {
          s.answerInterruptibly(c);
        } else {
          s.answer(c);
        }
        done = true;
        return sidecar.hold(s, c);
      } catch (SidecarException e) {
        if (!s.wasTooLate(c)) {
          throw e;
        }
      } finally {
        if (!done) {
          s.abandon(c);
        }
      }
    }
  }

  private Hold takeUninterruptibly(LockRequest q, String label) {
    try {
      return take(q, label, false);
    } catch (InterruptedException e) {
      throw new AssertionError("not interruptible", e);
    }
  }

  @Override
  public String toString() {
    return "SidecarLock[" + request.resource() + " " + request.mode() + (isReentrant() ? " reentrant]" : "]");
  }
}
