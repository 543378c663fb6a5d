package io.github.locksidecar;

import java.nio.file.Path;
import java.time.Duration;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import java.util.concurrent.locks.ReentrantLock;

/** The sessions of one {@link LockSidecar}: one at a time, and the next when the last has ended. */
final class Sessions {
  private static final long SHORTEST_PAUSE = TimeUnit.MILLISECONDS.toNanos(50);
  private static final long LONGEST_PAUSE = TimeUnit.SECONDS.toNanos(1);

  private final Path socket;
  private final String name;
  private final Map<String, String> metadata;
  private final Duration ttl;
  private final Duration connectTimeout;
  private final Runnable onDraining;

  private final Executor threads = Threads.asNeeded("callback");
  private final Executor callbacks = Later.over(threads);

  private final ReentrantLock mu = new ReentrantLock();
  // Guarded by mu.
  private CompletableFuture<Session> session; // the last one, when it is open
  private Session newest; // the same, also while it is being opened
  private boolean closed;

  Sessions(Path socket, LockSidecar.Builder how) {
    this.socket = socket;
    this.name = how.name;
    this.metadata = Map.copyOf(how.metadata);
    this.ttl = how.ttl;
    this.connectTimeout = how.connectTimeout;
    this.onDraining = how.onDraining;
  }

  /** The session, or a new one where it has ended. */
  CompletableFuture<Session> current() {
    mu.lock();
    try {
      if (session == null || session.isCompletedExceptionally() || session.isDone() && session.join().isOver()) {
        // On another thread: who waits for it may be interrupted, or not want to wait at all.
        session = CompletableFuture.supplyAsync(this::open, threads);
      }
      return session;
    } finally {
      mu.unlock();
    }
  }

  boolean isDraining() {
    mu.lock();
    try {
      return newest != null && newest.isDraining();
    } finally {
      mu.unlock();
    }
  }

  /** Ends the last one, and opens no more. */
  void close() {
    Session last;
    mu.lock();
    try {
      closed = true;
      last = newest;
    } finally {
      mu.unlock();
    }
    if (last != null) {
      last.close();
    }
  }

  /** Opens a session. A sidecar that hangs up before it has answered, or takes no calls, is called again. */
  private Session open() {
    long end = System.nanoTime() + Times.nanos(connectTimeout);
    SidecarUnavailableException last = null;
    for (long pause = SHORTEST_PAUSE; ; pause = Math.min(2 * pause, LONGEST_PAUSE)) {
      Session s = make();
      try {
        s.open(name, metadata, ttl, end - System.nanoTime());
        return s;
      } catch (SidecarUnavailableException e) {
        boolean over = end - System.nanoTime() < pause;
        if (over && last != null) {
          throw last; // says more than that the last call was cut short
        }
        if (over || !e.passes) {
          throw e;
        }
        last = e;
        LockSupport.parkNanos(pause);
      }
    }
  }

  private Session make() {
    mu.lock();
    try {
      if (closed) {
        String message = "this program has closed the connection to the sidecar";
        throw new SidecarUnavailableException(Loss.CLOSED, message, null);
      }
      newest = new Session(socket, BootClock.system(), callbacks, onDraining);
      return newest;
    } finally {
      mu.unlock();
    }
  }
}
