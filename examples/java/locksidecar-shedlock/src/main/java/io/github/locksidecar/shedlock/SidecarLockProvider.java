package io.github.locksidecar.shedlock;

import io.github.locksidecar.Hold;
import io.github.locksidecar.LockLostException;
import io.github.locksidecar.LockSidecar;
import io.github.locksidecar.SidecarException;
import io.github.locksidecar.SidecarLock;
import java.lang.System.Logger.Level;
import java.time.Duration;
import java.util.Objects;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import net.javacrumbs.shedlock.core.AbstractSimpleLock;
import net.javacrumbs.shedlock.core.ExtensibleLockProvider;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.SimpleLock;

/**
 * ShedLock's locks through the sidecar beside the app.
 *
 * <pre>{@code
 * @Bean LockSidecar sidecar() { return LockSidecar.connect(); }
 * @Bean LockProvider locks(LockSidecar sidecar) { return new SidecarLockProvider(sidecar); }
 * }</pre>
 *
 * <ul>
 *   <li>A task whose process dies does not keep others out until {@code lockAtMostFor}: its lock is
 *       free at once.
 *   <li>{@code lockAtMostFor} ends the lock of a task that hangs, at most after 24 h; where it is
 *       longer, the lock lasts as long as the task.
 *   <li>{@code lockAtLeastFor} keeps others out for that long after the grant, by a clock of this
 *       process that no node can have set wrong. It ends with the process.
 * </ul>
 */
public final class SidecarLockProvider implements ExtensibleLockProvider {
  private static final System.Logger LOG = System.getLogger(SidecarLockProvider.class.getName());
  private static final Duration SHORTEST = Duration.ofMillis(100);
  private static final Duration LONGEST = Duration.ofHours(24);

  private final LockSidecar sidecar;
  private final String prefix;

  /** Locks are named {@code shedlock/NAME}. */
  public SidecarLockProvider(LockSidecar sidecar) {
    this(sidecar, "shedlock/");
  }

  /** Locks have names that begin with a prefix. */
  public SidecarLockProvider(LockSidecar sidecar, String prefix) {
    this.sidecar = Objects.requireNonNull(sidecar, "sidecar must not be null");
    this.prefix = Objects.requireNonNull(prefix, "prefix must not be null");
  }

  /**
   * Takes the lock if it is free.
   *
   * @throws SidecarException the sidecar refuses, or cannot be asked: the task does not run
   */
  @Override
  public Optional<SimpleLock> lock(LockConfiguration how) {
    // No owner: the lock may outlast its task, and then nobody who waits stands still because of it.
    SidecarLock lock = sidecar.lock(prefix + how.getName()).withOwner("");
    Duration most = how.getLockAtMostFor();
    if (most.compareTo(LONGEST) <= 0) {
      lock = lock.withMaxHold(bounded(most));
    }
    return lock.tryAcquire().map(hold -> new Lock(how, hold, System.nanoTime()));
  }

  private static Duration bounded(Duration most) {
    return most.compareTo(SHORTEST) < 0 ? SHORTEST : most.compareTo(LONGEST) > 0 ? LONGEST : most;
  }

  private static final class Lock extends AbstractSimpleLock {
    private final Hold hold;
    private final long since;

    Lock(LockConfiguration how, Hold hold, long since) {
      super(how);
      this.hold = hold;
      this.since = since;
    }

    @Override
    protected void doUnlock() {
      long left = lockConfiguration.getLockAtLeastFor().toNanos() - (System.nanoTime() - since);
      if (left <= 0) {
        release();
      } else {
        CompletableFuture.delayedExecutor(left, TimeUnit.NANOSECONDS).execute(this::release);
      }
    }

    private void release() {
      try {
        hold.close();
      } catch (LockLostException e) {
        LOG.log(Level.WARNING, "another node may have run " + lockConfiguration.getName() + " at the same time: " + e.getMessage());
      } catch (SidecarException e) {
        LOG.log(Level.WARNING, "the lock of " + lockConfiguration.getName() + " is free a little later: " + e.getMessage());
      }
    }

    @Override
    protected Optional<SimpleLock> doExtend(LockConfiguration longer) {
      try {
        hold.extend(bounded(longer.getLockAtMostFor()));
        return Optional.of(new Lock(longer, hold, System.nanoTime()));
      } catch (LockLostException e) {
        return Optional.empty();
      }
    }
  }
}
