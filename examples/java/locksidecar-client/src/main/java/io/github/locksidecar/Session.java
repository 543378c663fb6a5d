package io.github.locksidecar;

import io.grpc.CallOptions;
import io.grpc.ClientCall;
import io.grpc.Context;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.Status;
import java.nio.file.Path;
import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executor;
import java.util.concurrent.Future;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.locks.ReentrantLock;
import locksidecar.v1.Locksidecar.AcquireRequest;
import locksidecar.v1.Locksidecar.CancelRequest;
import locksidecar.v1.Locksidecar.DowngradeRequest;
import locksidecar.v1.Locksidecar.KeepAliveRequest;
import locksidecar.v1.Locksidecar.Mode;
import locksidecar.v1.Locksidecar.OpenSessionRequest;
import locksidecar.v1.Locksidecar.ReleaseRequest;
import locksidecar.v1.Locksidecar.SessionRequest;
import locksidecar.v1.Locksidecar.SessionResponse;

/**
 * One stream to the sidecar. When it ends, everything that it held is lost.
 *
 * <p>Its state is guarded by one lock that is never held while anything waits, so that virtual
 * threads are not pinned, and the thread that does the input and output is not held up.
 */
final class Session {
  /** How long an answer may be overdue before the sidecar is taken to be frozen. */
  static final long OVERDUE = TimeUnit.SECONDS.toNanos(5);

  /** How many messages gRPC may bring before it is asked for more. */
  private static final int AHEAD = 64;

  private final Path socket;
  private final BootClock clock;
  private final ScheduledExecutorService timer;
  private final Executor callbacks;
  private final Runnable onDraining;
  private final ManagedChannel channel;
  private final ClientCall<SessionRequest, SessionResponse> stream;
  private final AtomicBoolean disconnected = new AtomicBoolean();
  private final CompletableFuture<Void> over = new CompletableFuture<>();

  /** Taken to send: a stream takes one message at a time. Before mu. */
  private final ReentrantLock sending = new ReentrantLock();

  private final ReentrantLock mu = new ReentrantLock();
  // Guarded by mu.
  private final Holds holds;
  private final Map<String, Call> calls = new HashMap<>();
  private long lastId;
  private boolean opened;
  private SidecarException end; // why the session ended; null: it has not
  private Future<?> keepAlive;

  Session(
      Path socket,
      Transport transport,
      BootClock clock,
      ScheduledExecutorService timer,
      Executor callbacks,
      Runnable onDraining) {
    this.socket = socket;
    this.clock = clock;
    this.timer = timer;
    this.callbacks = callbacks;
    this.onDraining = onDraining;
    this.holds = new Holds(mu, clock, timer, callbacks);
    this.channel = transport.open();
    this.stream = call(channel);
  }

  /** Outside of the gRPC call that this thread may be serving: that would end the session. */
  private static ClientCall<SessionRequest, SessionResponse> call(ManagedChannel channel) {
    Context before = Context.ROOT.attach();
    try {
      return channel.newCall(Transport.SESSION, CallOptions.DEFAULT);
    } finally {
      Context.ROOT.detach(before);
    }
  }

  /** Opens it within a limit, in nanoseconds. With an exception there is nothing left of it. */
  void open(String name, Map<String, String> metadata, Duration ttl, long limit) {
    stream.start(new Receiver(), new Metadata());
    stream.request(AHEAD);
    OpenSessionRequest.Builder open = OpenSessionRequest.newBuilder().setName(name).putAllMetadata(metadata);
    if (ttl != null) {
      open.setTtl(SidecarClock.proto(ttl));
    }
    Call c = Call.plain();
    send(c, SessionRequest.newBuilder().setOpen(open));
    try {
      Answers.await(c, limit, socket);
    } catch (SidecarException e) {
      ended(e);
      throw e;
    }
    if (ttl != null) {
      long every = ttl.toNanos() / 3;
      mu.lock();
      try {
        keepAlive = timer.scheduleAtFixedRate(this::keepAlive, every, every, TimeUnit.NANOSECONDS);
      } finally {
        mu.unlock();
      }
    }
  }

  private void keepAlive() {
    send(Call.plain(), SessionRequest.newBuilder().setKeepAlive(KeepAliveRequest.getDefaultInstance()));
  }

  boolean isOver() {
    mu.lock();
    try {
      return end != null;
    } finally {
      mu.unlock();
    }
  }

  Path socket() {
    return socket;
  }

  Executor callbacks() {
    return callbacks;
  }

  Holds holds() {
    return holds;
  }

  /**
   * Ends the session and releases its locks. It returns when the sidecar has done so, or does not
   * answer; then the sidecar does it as soon as it sees that the connection has ended.
   */
  void close() {
    String closed = "this program has closed the session";
    finish(new SidecarUnavailableException(Loss.CLOSED, closed, null), Loss.CLOSED, closed);
    sending.lock();
    try {
      stream.halfClose();
    } catch (IllegalStateException e) {
      // the stream has ended already
    } finally {
      sending.unlock();
    }
    Answers.settle(over, OVERDUE);
    disconnect();
  }

  // --- requests

  Call acquire(LockRequest q) {
    AcquireRequest.Builder b = AcquireRequest.newBuilder().setResource(q.resource()).setOwner(q.owner());
    b.setReentrant(q.reentrant());
    b.setMode(q.mode() == LockMode.SHARED ? Mode.SHARED : Mode.EXCLUSIVE);
    if (q.patience() != null) {
      b.setWait(SidecarClock.proto(q.patience()));
    }
    if (q.maxHold() != null) {
      b.setMaxHold(SidecarClock.proto(q.maxHold()));
    }
    Call c = Call.acquiring(q.maxHold() == null ? 0 : q.maxHold().toNanos());
    send(c, SessionRequest.newBuilder().setAcquire(b));
    return c;
  }

  Call release(Held h) {
    Call c = Call.releasing(h);
    send(c, SessionRequest.newBuilder().setRelease(ReleaseRequest.newBuilder().setLockId(h.id)));
    return c;
  }

  Call downgrade(Held h) {
    Call c = Call.plain();
    send(c, SessionRequest.newBuilder().setDowngrade(DowngradeRequest.newBuilder().setLockId(h.id)));
    return c;
  }

  /** Makes sure that nobody keeps what nobody waits for. A second time it does nothing. */
  void abandon(Call c) {
    Held granted;
    mu.lock();
    try {
      if (c.abandoned || end != null) { // when the session ends, the sidecar releases everything
        return;
      }
      c.abandoned = true;
      granted = c.held;
      if (granted == null && calls.get(c.id) != c) {
        return; // it was refused
      }
    } finally {
      mu.unlock();
    }
    if (granted != null) { // and the caller had left before
      release(granted);
    } else {
      CancelRequest.Builder cancel = CancelRequest.newBuilder().setRequestId(c.id);
      send(Call.plain(), SessionRequest.newBuilder().setCancel(cancel));
    }
  }

  /** Sends a request. What goes wrong is told as its answer. */
  private void send(Call c, SessionRequest.Builder q) {
    SidecarException refused;
    sending.lock();
    try {
      mu.lock();
      try {
        refused = end;
        if (refused == null) {
          c.id = Long.toString(++lastId, Character.MAX_RADIX);
          calls.put(c.id, c);
          if (c.acquires) {
            holds.asked();
          }
          c.sent = clock.atLeast();
        }
      } finally {
        mu.unlock();
      }
      if (refused == null) {
        stream.sendMessage(q.setRequestId(c.id).build());
      }
    } catch (IllegalStateException e) {
      return; // the stream has ended: the receiver says why, and ends the call
    } finally {
      sending.unlock();
    }
    if (refused != null) {
      c.answer.completeExceptionally(refused);
    }
  }

  // --- what is received

  private final class Receiver extends ClientCall.Listener<SessionResponse> {
    @Override
    public void onMessage(SessionResponse m) {
      Call answered = null;
      mu.lock();
      try {
        if (m.hasEvent()) {
          holds.news(m.getEvent());
        } else {
          answered = calls.remove(m.getRequestId()); // null: it came after the close
          if (answered != null) {
            note(answered, m);
          }
        }
      } finally {
        mu.unlock();
      }
      if (answered != null) {
        answered.answer.complete(m);
      } else if (m.getEvent().hasDraining()) {
        callbacks.execute(onDraining);
      }
      stream.request(1);
    }

    @Override
    public void onClose(Status status, Metadata trailers) {
      boolean was;
      mu.lock();
      try {
        was = opened;
      } finally {
        mu.unlock();
      }
      ended(Answers.endOf(status, trailers, socket, was));
    }
  }

  /** Notes what an answer says. mu is held. */
  private void note(Call c, SessionResponse m) {
    switch (m.getResponseCase()) {
      case OPENED -> {
        opened = true;
        holds.opened(c.sent, m.getOpened());
      }
      case GRANTED -> {
        Held h = holds.granted(c, m.getGranted());
        c.held = h;
        if (c.abandoned) {
          callbacks.execute(() -> release(h));
        }
      }
      case RELEASED -> holds.released(c.releases);
      case DOWNGRADED -> holds.downgraded(c, m.getDowngraded());
      default -> {}
    }
    if (c.acquires) {
      holds.answered();
    }
  }

  /** What a grant has made; to be asked when the answer is there. */
  Held heldBy(Call c) {
    mu.lock();
    try {
      return c.held;
    } finally {
      mu.unlock();
    }
  }

  // --- the end

  private void ended(SidecarException why) {
    finish(why, Loss.GONE, "the connection to the sidecar ended");
    disconnect();
  }

  /** Ends the connection, once; then it is over, and the thread that serves it may go. */
  private void disconnect() {
    if (disconnected.compareAndSet(false, true)) {
      channel.shutdownNow();
      over.complete(null);
    }
  }

  /** Ends the session once: later reasons do not count. */
  private void finish(SidecarException why, String lostReason, String message) {
    Call[] waiting;
    mu.lock();
    try {
      if (end != null) {
        return;
      }
      end = why;
      holds.end(lostReason, message);
      waiting = calls.values().toArray(Call[]::new);
      calls.clear();
      if (keepAlive != null) {
        keepAlive.cancel(false);
      }
    } finally {
      mu.unlock();
    }
    for (Call c : waiting) {
      c.answer.completeExceptionally(why);
    }
  }
}
