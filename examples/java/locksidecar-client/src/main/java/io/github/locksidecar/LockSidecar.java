package io.github.locksidecar;

import java.nio.file.Path;
import java.time.Duration;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.SynchronousQueue;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.locks.LockSupport;
import java.util.concurrent.locks.ReentrantLock;

/**
 * The sidecar beside the app: the way to its locks. One object does for a whole process; its
 * methods may be called by many threads.
 *
 * <pre>{@code
 * try (LockSidecar sidecar = LockSidecar.connect();
 *     Hold hold = sidecar.lock("orders/42").acquire(Duration.ofSeconds(5))) {
 *   ...
 * }
 * }</pre>
 *
 * <p>All locks hang on one session, a stream to the sidecar. When the process ends, however it
 * ends, they are free at once. When the sidecar ends, they are lost at once; the next request opens
 * another session, and nothing is carried over.
 */
public final class LockSidecar implements AutoCloseable {
  private static final long SHORTEST_PAUSE = TimeUnit.MILLISECONDS.toNanos(50);
  private static final long LONGEST_PAUSE = TimeUnit.SECONDS.toNanos(1);

  private final Path socket;
  private final String name;
  private final Map<String, String> metadata;
  private final Duration ttl;
  private final Duration connectTimeout;
  private final Runnable onDraining;

  private final Transport transport;
  private final ScheduledThreadPoolExecutor timer;
  private final ExecutorService callbacks;
  private final Owned owned = new Owned();

  private final ReentrantLock mu = new ReentrantLock();
  // Guarded by mu.
  private CompletableFuture<Session> session; // the last one, when it is open
  private Session newest; // the same, also while it is being opened
  private boolean closed;

  private LockSidecar(Builder b) {
    this.socket = b.socket == null ? SocketPath.standard() : b.socket;
    this.name = b.name;
    this.metadata = Map.copyOf(b.metadata);
    this.ttl = b.ttl;
    this.connectTimeout = b.connectTimeout;
    this.onDraining = b.onDraining;
    this.transport = new Transport(socket, new Threads("io"));
    this.timer = new ScheduledThreadPoolExecutor(1, new Threads("clock"));
    timer.setRemoveOnCancelPolicy(true);
    // As many as are needed: the news of a loss never waits for another callback.
    this.callbacks =
        new ThreadPoolExecutor(
            0, Integer.MAX_VALUE, 5, TimeUnit.SECONDS, new SynchronousQueue<>(), new Threads("callback"));
  }

  /**
   * Connects to the sidecar at {@code $LOCKSIDECAR_SOCKET}, or else where a sidecar of this user is
   * by default.
   *
   * @throws SidecarUnavailableException nothing answers there; the message says where that is, and
   *     how to start a sidecar
   */
  public static LockSidecar connect() {
    return builder().connect();
  }

  /** Connects to the sidecar at a socket. */
  public static LockSidecar connect(Path socket) {
    return builder().socket(socket).connect();
  }

  /** To connect with more than the defaults. */
  public static Builder builder() {
    return new Builder();
  }

  /** How to connect. */
  public static final class Builder {
    private Path socket;
    private String name = "";
    private Map<String, String> metadata = Map.of();
    private Duration ttl;
    private Duration connectTimeout = Duration.ofSeconds(15);
    private Runnable onDraining = () -> {};

    private Builder() {}

    /** Where the sidecar is; default: as {@link LockSidecar#connect()} says. */
    public Builder socket(Path path) {
      this.socket = Objects.requireNonNull(path);
      return this;
    }

    /** Shown in lists, at most 128 bytes. */
    public Builder name(String shown) {
      this.name = Objects.requireNonNull(shown);
      return this;
    }

    /** Shown in lists, at most 1 KiB in all. No secrets: everybody who may list sees it. */
    public Builder metadata(Map<String, String> shown) {
      this.metadata = Objects.requireNonNull(shown);
      return this;
    }

    /**
     * Makes the sidecar end the session when it gets no keep-alive for so long (100 ms to 1 h). The
     * client sends them by itself, from a thread of its own: they show that the JVM runs, and not
     * that the work goes on.
     */
    public Builder ttl(Duration limit) {
      this.ttl = Objects.requireNonNull(limit);
      return this;
    }

    /**
     * How long it may take to open a session; default 15 s, for a JVM that has just started loads
     * much for it. A sidecar that hangs up before it has answered, as it does to make room where
     * connections are short, is called again until then. Where there is none it is told at once.
     */
    public Builder connectTimeout(Duration limit) {
      this.connectTimeout = Objects.requireNonNull(limit);
      return this;
    }

    /** Is called when the sidecar is about to stop: finish and release. */
    public Builder onDraining(Runnable listener) {
      this.onDraining = Objects.requireNonNull(listener);
      return this;
    }

    /**
     * Connects.
     *
     * @throws SidecarUnavailableException nothing answers
     * @throws SidecarException the sidecar refuses, with the reason {@code PERMISSION_DENIED},
     *     {@code DRAINING}, {@code LIMIT_EXCEEDED} or {@code INVALID_REQUEST}
     */
    public LockSidecar connect() {
      LockSidecar s = new LockSidecar(this);
      try {
        Answers.get(s.session());
        return s;
      } catch (RuntimeException e) {
        s.close();
        throw e;
      }
    }
  }

  /** The socket that it is connected to. */
  public Path socket() {
    return socket;
  }

  /**
   * A lock that excludes everybody else. The name has 1 to 512 bytes of UTF-8. It is not reentrant:
   * {@link SidecarLock#reentrant} gives one that is.
   */
  public SidecarLock lock(String resource) {
    return new SidecarLock(this, new LockRequest(resource, LockMode.EXCLUSIVE), null);
  }

  /**
   * A lock for many readers or one writer; the writer's is the same as {@link #lock}. It is not
   * reentrant: {@link SidecarReadWriteLock#reentrant} gives one that is.
   */
  public SidecarReadWriteLock readWriteLock(String resource) {
    SidecarLock read = new SidecarLock(this, new LockRequest(resource, LockMode.SHARED), null);
    return new SidecarReadWriteLock(read, lock(resource));
  }

  /**
   * Releases everything and ends the connection. Holds that were not released are lost, and waits
   * end with {@link SidecarUnavailableException}.
   */
  @Override
  public void close() {
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
    timer.shutdownNow();
    transport.close();
  }

  Owned owned() {
    return owned;
  }

  /** The session, or a new one where it has ended. */
  CompletableFuture<Session> session() {
    mu.lock();
    try {
      if (session == null || session.isCompletedExceptionally() || session.isDone() && session.join().isOver()) {
        // On another thread: who waits for it may be interrupted, or not want to wait at all.
        session = CompletableFuture.supplyAsync(this::open, callbacks);
      }
      return session;
    } finally {
      mu.unlock();
    }
  }

  /**
   * Opens a session. A sidecar that hangs up before it has answered is called again: on a busy
   * machine it does so to clients that are slow to say what they want.
   */
  private Session open() {
    long end = System.nanoTime() + connectTimeout.toNanos();
    SidecarUnavailableException hungUp = null;
    for (long pause = SHORTEST_PAUSE; ; pause = Math.min(2 * pause, LONGEST_PAUSE)) {
      Session s = newSession();
      try {
        s.open(name, metadata, ttl, Math.max(1, end - System.nanoTime()));
        return s;
      } catch (SidecarUnavailableException e) {
        if (e.reason().equals(Loss.GONE)) {
          hungUp = e;
        }
        boolean over = end - System.nanoTime() < pause;
        if (over && hungUp != null) {
          throw hungUp; // says more than that the last call was cut short
        }
        if (over || e != hungUp) {
          throw e;
        }
        LockSupport.parkNanos(pause);
      }
    }
  }

  private Session newSession() {
    mu.lock();
    try {
      if (closed) {
        String message = "this program has closed the connection to the sidecar";
        throw new SidecarUnavailableException(Loss.CLOSED, message, null);
      }
      newest = new Session(socket, transport, BootClock.system(), timer, callbacks, onDraining);
      return newest;
    } finally {
      mu.unlock();
    }
  }

  /** Asks for a lock in the background. */
  CompletableFuture<Hold> take(LockRequest q) {
    CompletableFuture<Hold> wanted = new CompletableFuture<>();
    session()
        .whenComplete(
            (s, e) -> {
              if (e != null) {
                wanted.completeExceptionally(Answers.again(e));
              } else if (!wanted.isDone()) {
                take(s, q, wanted);
              }
            });
    return wanted;
  }

  private void take(Session s, LockRequest q, CompletableFuture<Hold> wanted) {
    Call c = s.acquire(q);
    if (q.overdue() != 0) {
      c.answer.orTimeout(q.overdue(), TimeUnit.NANOSECONDS);
    }
    c.answer.whenCompleteAsync(
        (m, e) -> {
          try {
            if (e != null) {
              throw e instanceof TimeoutException ? Answers.overdue(socket) : Answers.again(e);
            }
            Answers.checked(m);
            if (!wanted.complete(new Hold(s, s.heldBy(c)))) {
              s.abandon(c);
            }
          } catch (SidecarException refused) {
            wanted.completeExceptionally(refused);
            s.abandon(c);
          }
        },
        callbacks);
    wanted.whenComplete(
        (hold, e) -> {
          if (!c.answer.isDone()) {
            s.abandon(c); // cancelled, or completed by another
          }
        });
  }
}
