package io.github.locksidecar;

import java.nio.file.Path;
import java.time.Duration;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executor;
import java.util.stream.Stream;

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
 * <p>All locks hang on one session, a connection to the sidecar, which the first lock opens. When
 * the process ends, however it ends, they are free at once. When the sidecar ends, they are lost at
 * once; the next request opens another session, and nothing is carried over.
 */
public final class LockSidecar implements AutoCloseable {
  /** Of what the sidecar takes; it refuses more. */
  private static final Duration LONGEST_GRACE = Duration.ofHours(1);

  private final Path socket;
  private final Executor futures;
  private final Looks looks;
  private final Owned owned = new Owned();

  private final Sessions sessions;

  private LockSidecar(Builder b) {
    this.socket = b.socket == null ? SocketPath.standard() : b.socket;
    this.futures = Later.over(b.executor == null ? Threads.few("future") : Threads.through("future", b.executor));
    this.looks = new Looks(socket);
    this.sessions = new Sessions(socket, b);
  }

  /**
   * The sidecar at {@code $LOCKSIDECAR_SOCKET}, or else where a sidecar of this user is by default. It
   * is called with the first lock, or by {@link #open}.
   *
   * @throws SidecarUnavailableException there is no place for a sidecar of this user
   */
  public static LockSidecar connect() {
    return builder().connect();
  }

  /** The sidecar at a socket. It is called with the first lock, or by {@link #open}. */
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
    private Executor executor;

    // How to open a session.
    String name = "";
    Map<String, String> metadata = Map.of();
    Duration ttl;
    Duration connectTimeout = Duration.ofSeconds(15);
    Runnable onDraining = () -> {};

    private Builder() {}

    /** Where the sidecar is; default: as {@link LockSidecar#connect()} says. */
    public Builder socket(Path path) {
      this.socket = Objects.requireNonNull(path, "socket must not be null");
      return this;
    }

    /** Shown in lists, at most 128 bytes. */
    public Builder name(String shown) {
      this.name = LockRequest.check("name", Objects.requireNonNull(shown, "name must not be null"));
      return this;
    }

    /** Shown in lists, at most 1 KiB in all. No secrets: everybody who may list sees it. */
    public Builder metadata(Map<String, String> shown) {
      Map<String, String> all = new HashMap<>(Objects.requireNonNull(shown, "metadata must not be null"));
      all.forEach(
          (key, value) -> {
            LockRequest.check("metadata", Objects.requireNonNull(key, "a key of the metadata is null"));
            LockRequest.check("metadata", Objects.requireNonNull(value, () -> "metadata " + key + " is null"));
          });
      this.metadata = all;
      return this;
    }

    /**
     * Makes the sidecar end the session when it gets no keep-alive for so long (100 ms to 1 h). The
     * client sends them by itself, from a thread of its own: they show that the JVM runs, and not
     * that the work goes on.
     */
    public Builder ttl(Duration limit) {
      this.ttl = Objects.requireNonNull(limit, "ttl must not be null");
      return this;
    }

    /**
     * How long it may take to open a session; default 15 s, for a busy machine. A sidecar that hangs up
     * before it has answered, as it does to make room where connections are short, or that takes no calls
     * for now, is called again until then. Where there is none it is told at once.
     */
    public Builder connectTimeout(Duration limit) {
      this.connectTimeout = Objects.requireNonNull(limit, "connectTimeout must not be null");
      return this;
    }

    /** Is called when the sidecar is about to stop: finish and release. */
    public Builder onDraining(Runnable listener) {
      this.onDraining = Objects.requireNonNull(listener, "listener must not be null");
      return this;
    }

    /**
     * Runs what depends on the futures of {@code acquireAsync} and {@code closeAsync}. Default: a few
     * threads, twice as many as there are processors and 4 at least. So a dependent that blocks holds up
     * others when all are busy: give it an executor of your own, such as one of virtual threads. What is
     * told of losses has threads of its own.
     */
    public Builder executor(Executor runs) {
      this.executor = Objects.requireNonNull(runs, "executor must not be null");
      return this;
    }

    /** Makes it. The sidecar is called with the first lock, or by {@link LockSidecar#open}. */
    public LockSidecar connect() {
      return new LockSidecar(this);
    }
  }

  /**
   * Calls the sidecar now, and not with the first lock; of one that is open it does nothing.
   *
   * @return this
   * @throws SidecarUnavailableException nothing answers within {@link Builder#connectTimeout}; the
   *     message says where that is, and how to start a sidecar
   * @throws SidecarException the sidecar refuses, with the reason {@code PERMISSION_DENIED}, {@code
   *     DRAINING}, {@code LIMIT_EXCEEDED} or {@code INVALID_REQUEST}
   */
  public LockSidecar open() {
    Answers.get(session());
    return this;
  }

  /** Where the sidecar is. */
  public Path socket() {
    return socket;
  }

  /** Tells whether the sidecar is about to stop: finish, and release. */
  public boolean isDraining() {
    return sessions.isDraining();
  }

  // --- locks

  /**
   * A lock that excludes everybody else. The name has 1 to 512 bytes of UTF-8. It is not reentrant:
   * {@link SidecarLock#reentrant} gives one that is.
   */
  public SidecarLock lock(String resource) {
    return lock(List.of(Objects.requireNonNull(resource, "resource must not be null")), LockMode.EXCLUSIVE);
  }

  /**
   * A lock on 2 to 16 resources: all of them or none. Such requests never wait for each other in a
   * circle, whatever their order. {@link Hold#parts} has the fence of each.
   */
  public SidecarLock lock(Collection<String> resources) {
    Objects.requireNonNull(resources, "resources must not be null");
    resources.forEach(r -> Objects.requireNonNull(r, "one of the resources is null"));
    return lock(List.copyOf(resources), LockMode.EXCLUSIVE);
  }

  private SidecarLock lock(List<String> resources, LockMode mode) {
    return new SidecarLock(this, new LockRequest(resources, mode), null);
  }

  /**
   * A lock for many readers or one writer; the writer's is the same as {@link #lock}. It is not
   * reentrant: {@link SidecarReadWriteLock#reentrant} gives one that is.
   */
  public SidecarReadWriteLock readWriteLock(String resource) {
    SidecarLock write = lock(resource);
    return new SidecarReadWriteLock(lock(List.of(resource), LockMode.SHARED), write);
  }

  /** The same on 2 to 16 resources, all of them or none; see {@link #lock(Collection)}. It cannot be reentrant. */
  public SidecarReadWriteLock readWriteLock(Collection<String> resources) {
    SidecarLock write = lock(resources);
    return new SidecarReadWriteLock(lock(List.copyOf(resources), LockMode.SHARED), write);
  }

  /** {@link #once(String, Once)}, remembered for 30 days and tried as often as it takes. */
  public SidecarLock once(String resource) {
    return once(resource, Once.DEFAULT);
  }

  /**
   * Something that is to succeed only once: whoever gets the lock makes an attempt at it, and ends it
   * by {@link Hold#succeeded()} or {@link Hold#failed}. Without either the outcome is {@link
   * Outcome.State#UNKNOWN}, and the next attempt finds that in {@link Hold#previous}. When it has
   * succeeded, an acquire throws {@link AlreadyDoneException}; when it was tried too often, {@link
   * AttemptsExhaustedException}.
   */
  public SidecarLock once(String resource, Once how) {
    Objects.requireNonNull(resource, "resource must not be null");
    Objects.requireNonNull(how, "once must not be null");
    return new SidecarLock(this, new LockRequest(List.of(resource), LockMode.EXCLUSIVE).onlyOnce(how), null);
  }

  // --- what was detached

  /**
   * Attaches a lock that was {@link Hold#detach detached}: the hold has the fence that it had. Who has it attached
   * elsewhere loses it, with {@code TAKEN_OVER}. Its release ends it, and the handle. When this process
   * ends without that, or its sidecar, it is detached again. When its time is over it is lost, with {@code
   * MAX_HOLD}.
   *
   * @throws NotHolderException it was released, or its time is over
   */
  public Hold attach(String handle) {
    return new SidecarLock(this, LockRequest.attaching(handle), null).acquireNow();
  }

  /** The same without waiting for the answer, as {@link SidecarLock#acquireAsync()}. */
  public CompletableFuture<Hold> attachAsync(String handle) {
    return take(LockRequest.attaching(handle).ownedBy(Owned.newLabel()));
  }

  /**
   * Lets a lock that was detached end after a time from now (1 s to 24 h), attached or not. Who has it attached
   * calls this, and then {@link Hold#extend}: the hold does not know of the new end by itself.
   *
   * @throws NotHolderException it was released, or its time is over
   */
  public Detached extendDetached(String handle, Duration ttl) {
    Objects.requireNonNull(ttl, "ttl must not be null");
    Json body = new Json().with("handle", LockRequest.checkHandle(handle)).with("ttl", Times.format(ttl));
    long sent = BootClock.system().atLeast();
    return new Detached(looks.ask("extendHandle", body, "detached"), BootClock.system(), sent);
  }

  /**
   * Ends a lock that was detached. Who has it attached loses it, with {@code TAKEN_OVER}.
   *
   * @throws NotHolderException it was released before, or its time is over
   */
  public void releaseDetached(String handle) {
    looks.tell("releaseHandle", new Json().with("handle", LockRequest.checkHandle(handle)), "handleReleased", Duration.ofSeconds(10));
  }

  // --- looks. Each has a connection of its own, and needs no session.

  /** Who holds a resource and who waits for it, everywhere. */
  public LockState get(String resource) {
    return LockState.read(looks.ask("getLock", named(resource), "lock"));
  }

  /** All resources with that prefix that are held or waited for, in byte order, by pages. It may end with {@link IncompleteException}. */
  public Stream<LockState> list(String prefix) {
    return looks.pages("listLocks", prefixed(prefix), "locks").map(LockState::read);
  }

  /** {@link #watch(String, Duration)}, looking once a second. */
  public Stream<LockChange> watch(String prefix) {
    return watch(prefix, Duration.ofSeconds(1));
  }

  /**
   * What is there, and then each change that the sidecar sees when it looks. The stream waits for
   * what comes, and ends when it is closed, by another thread too. An interrupt ends it with {@link
   * CancelledException}.
   */
  public Stream<LockChange> watch(String prefix, Duration interval) {
    return looks.stream("watchLocks", every(prefixed(prefix), interval).with("partial", true), "watched").map(LockChange::read);
  }

  /** Who leads: who holds the resource exclusively. */
  public Leader leader(String resource) {
    return Leader.read(looks.ask("getLeader", named(resource), "leader"));
  }

  /** Who leads, and then each change, looking once a second; as {@link #watch}. */
  public Stream<Leader> watchLeader(String resource) {
    return watchLeader(resource, Duration.ofSeconds(1));
  }

  /** The same with another interval, 100 ms to 1 min. */
  public Stream<Leader> watchLeader(String resource, Duration interval) {
    return looks.stream("watchLeader", every(named(resource), interval), "leader").map(Leader::read);
  }

  /** What became of what is done once: all outcomes with that prefix, or only those in some states. It ends as {@link #list}. */
  public Stream<Outcome> outcomes(String prefix, Outcome.State... states) {
    String wanted = String.join(",", Stream.of(states).map(Outcome.State::name).toList());
    return looks.pages("listOutcomes", prefixed(prefix).with("states", wanted), "outcomes").map(Outcome::read);
  }

  /** Forgets an outcome: the next attempt is the first again. For admins. Empty: there was none. */
  public Optional<Outcome> resetOutcome(String resource) {
    Json answer = looks.tell("resetOutcome", named(resource), "outcomeReset", Duration.ofSeconds(10));
    return Optional.ofNullable(answer.object("outcome")).map(Outcome::read);
  }

  /**
   * Takes a lock from all its holders. For admins.
   *
   * @param grace for how long others are kept out at most, so that a holder can stop
   * @return the ids of what was released, when it is gone
   */
  public List<String> forceRelease(String resource, Duration grace) {
    return forceRelease(resource, "", grace);
  }

  /** Takes a lock from one holder, or one who waits out of the queue, by its id. For admins. */
  public List<String> forceRelease(String resource, String lockId, Duration grace) {
    Objects.requireNonNull(lockId, "lockId must not be null");
    Objects.requireNonNull(grace, "grace must not be null");
    Json body = named(resource).with("lockId", lockId).with("grace", Times.format(grace));
    Duration limit = grace.isNegative() ? Duration.ZERO : Times.atMost(grace, LONGEST_GRACE);
    return looks.tell("forceRelease", body, "forceReleased", limit.plusSeconds(10)).texts("lockIds");
  }

  /** The sidecar itself. */
  public SidecarInfo info() {
    return SidecarInfo.read(looks.ask("getInfo", new Json(), "info"));
  }

  private static Json named(String resource) {
    return new Json().with("resource", LockRequest.check("resource", Objects.requireNonNull(resource, "resource must not be null")));
  }

  private static Json prefixed(String prefix) {
    return new Json().with("prefix", LockRequest.check("prefix", Objects.requireNonNull(prefix, "prefix must not be null")));
  }

  private static Json every(Json body, Duration interval) {
    return body.with("interval", Times.format(Objects.requireNonNull(interval, "interval must not be null")));
  }

  // --- the session

  /**
   * Releases everything and ends the connection. Holds that were not released are lost, and waits
   * end with {@link SidecarUnavailableException}.
   */
  @Override
  public void close() {
    sessions.close();
  }

  Owned owned() {
    return owned;
  }

  /** The session, or a new one where it has ended. */
  CompletableFuture<Session> session() {
    return sessions.current();
  }

  /** Asks for a lock in the background. */
  CompletableFuture<Hold> take(LockRequest q) {
    CompletableFuture<Hold> wanted = new CompletableFuture<>();
    take(q, wanted);
    return wanted;
  }

  private void take(LockRequest q, CompletableFuture<Hold> wanted) {
    session()
        .whenComplete(
            (s, e) -> {
              if (e != null) {
                futures.execute(() -> wanted.completeExceptionally(Answers.again(e)));
              } else if (!wanted.isDone()) {
                take(s, q, wanted);
              }
            });
  }

  private void take(Session s, LockRequest q, CompletableFuture<Hold> wanted) {
    Call c = s.acquire(q);
    s.expect();
    c.answer.whenCompleteAsync(
        (m, e) -> {
          if (e != null && s.wasTooLate(c)) {
            take(q, wanted);
          } else if (e != null) {
            wanted.completeExceptionally(Answers.again(e));
          } else if (!wanted.complete(hold(s, c))) {
            s.abandon(c);
          }
        },
        futures);
    wanted.whenComplete(
        (hold, e) -> {
          if (!c.answer.isDone()) {
            s.abandon(c); // cancelled, or completed by another
          }
        });
  }

  Hold hold(Session s, Call granted) {
    return new Hold(s, s.heldBy(granted), futures);
  }
}
