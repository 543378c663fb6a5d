package io.github.locksidecar;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.SocketChannel;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executor;
import java.util.concurrent.locks.LockSupport;
import java.util.concurrent.locks.ReentrantLock;

/**
 * One connection to the sidecar, with lines of JSON. When it ends, everything that it held is lost.
 *
 * <p>The rules are in {@link Core}. Here bytes move: one thread reads and looks at the clock (the
 * session's own or, as {@link Reading} says, a caller's), and whoever has a request writes it. The channel
 * does not block, for three reasons: who writes never waits for a sidecar that does not read; an interrupt of
 * who writes or reads does not close it; and a virtual thread keeps its carrier for no longer than a system call.
 */
final class Session {
  /** So many pieces stand unread at most: more than a socket keeps. */
  private static final int MOST_UNREAD = 16;

  private final Path socket;
  private final Core core;
  private final Reading reading;
  private final CompletableFuture<Void> over = new CompletableFuture<>();
  private volatile SocketChannel channel;
  private volatile Selector selector;
  private volatile Sending sending;

  /** Taken to read what has come, before mu, and never while anything waits. */
  private final ReentrantLock receiving = new ReentrantLock();

  // Guarded by receiving. No heap buffer: each thread that has read into one keeps a direct buffer of its size.
  private ByteBuffer in;
  private final byte[] came = new byte[1 << 16];

  // These are for the one who reads and looks at the clock.
  private long next; // after how many nanoseconds to look again
  private long lookBy = System.nanoTime(); // when that is
  private boolean stoodStill; // the last look came much later

  Session(Path socket, BootClock clock, Executor callbacks, Runnable onDraining) {
    this.socket = socket;
    this.core = new Core(socket.toString(), clock, callbacks, onDraining);
    this.reading = new Reading(core, core.mu);
    core.holds.catchUpBy(this::catchUp);
  }

  /** Opens it within a limit, in nanoseconds. With an exception there is nothing left of it. */
  void open(String name, Map<String, String> metadata, Duration ttl, long limit) {
    Json open = new Json().with("name", name).with("metadata", Json.of(metadata));
    if (ttl != null) {
      open.with("ttl", Times.format(ttl));
    }
    try {
      channel = SocketPath.connect(socket);
      selector = Selector.open();
      in = ByteBuffer.allocateDirect(came.length);
      channel.register(selector, SelectionKey.OP_READ);
      sending = new Sending(core, channel, selector);
      new Threads("io").newThread(this::run).start();
      Call c = Call.opening(open);
      send(c);
      Answers.await(c, limit, "the sidecar at " + socket);
    } catch (SidecarException e) {
      ended(e);
      throw e;
    } catch (IOException | Error e) { // no file or no thread to be had
      SidecarException why = new SidecarUnavailableException("NO_SIDECAR", "open a connection to the sidecar at " + socket + ": " + e, e);
      ended(why);
      throw why;
    }
    if (ttl != null) {
      core.mu.lock();
      try {
        core.keepAlive(ttl);
      } finally {
        core.mu.unlock();
      }
      selector.wakeup(); // it may look sooner from now on
    }
  }

  boolean isOver() {
    core.mu.lock();
    try {
      return core.end() != null;
    } finally {
      core.mu.unlock();
    }
  }

  boolean isDraining() {
    core.mu.lock();
    try {
      return core.end() == null && core.isDraining();
    } finally {
      core.mu.unlock();
    }
  }

  boolean inJeopardy() {
    core.mu.lock();
    try {
      return core.inJeopardy();
    } finally {
      core.mu.unlock();
    }
  }

  Holds holds() {
    return core.holds;
  }

  // --- requests

  /** What these give is asked for by {@link #answer}. Where no thread waits for it, {@link #expect} it. */
  Call acquire(LockRequest q) {
    Call c = Call.acquiring(q);
    send(c);
    return c;
  }

  /** Tells whether a request was too late for this session, which ended before it was sent; another one will do. */
  boolean wasTooLate(Call c) {
    core.mu.lock();
    try {
      return c.unsent && !core.end().reason().equals(Loss.CLOSED);
    } finally {
      core.mu.unlock();
    }
  }

  Call release(Held h) {
    Call c;
    core.mu.lock();
    try {
      c = core.release(h);
    } finally {
      core.mu.unlock();
    }
    sending.flush();
    return c;
  }

  /** Releases what is done once, and says how it ended. It stays held until that is recorded. */
  Call conclude(Held h, Outcome.State outcome, String note) {
    return ask(Call.about(h, "release", new Json().with("outcome", outcome.name()).with("note", note)));
  }

  /** What was concluded is not held any more. */
  void left(Held h) {
    core.mu.lock();
    try {
      core.holds.left(h);
    } finally {
      core.mu.unlock();
    }
  }

  Call downgrade(Held h) {
    return ask(Call.about(h, "downgrade", new Json()));
  }

  Call extend(Held h, Duration maxHold) {
    return ask(Call.about(h, "extend", new Json().with("maxHold", Times.format(maxHold))));
  }

  Call detach(Held h, Duration ttl) {
    return ask(Call.about(h, "detach", new Json().with("ttl", Times.format(ttl))));
  }

  private Call ask(Call c) {
    send(c);
    return c;
  }

  /** Makes sure that nobody keeps what nobody waits for. A second time it does nothing. */
  void abandon(Call c) {
    core.mu.lock();
    try {
      core.abandon(c);
    } finally {
      core.mu.unlock();
    }
    sending.flush();
  }

  /** What a grant has made; to be asked when the answer is there. */
  Held heldBy(Call c) {
    core.mu.lock();
    try {
      return c.held;
    } finally {
      core.mu.unlock();
    }
  }

  private void send(Call c) {
    boolean queues;
    core.mu.lock();
    try {
      core.post(c);
      queues = core.end() == null && c.id.isEmpty();
    } finally {
      core.mu.unlock();
    }
    if (queues) {
      selector.wakeup(); // its wait may end before the next look
    }
    sending.flush();
  }

  // --- bytes

  /** The session's thread. */
  private void run() {
    SidecarException why = null;
    try {
      while (serve()) {
        core.mu.lock();
        try {
          reading.leave();
        } finally {
          core.mu.unlock();
        }
      }
    } catch (IOException e) {
      why = gone(e);
    } catch (RuntimeException | Error e) { // closed by another thread, which has said why; or a fault
      why = gone(e);
    }
    ended(why == null ? gone(null) : why);
    while (!Later.again()) {
      LockSupport.parkNanos(Core.RETRY);
    }
  }

  /** Waits for what comes, or until it is time to look at the clock, and takes it. False: the connection is over. */
  private boolean serve() throws IOException {
    selector.select(1 + next / 1_000_000);
    selector.selectedKeys().clear();
    sending.goOn();
    receiving.lock();
    try {
      int n = receive();
      if (n < 0) {
        return false;
      }
      next = take(n, n == came.length); // where it is full, more may be what is overdue
    } finally {
      receiving.unlock();
    }
    sending.flush();
    return next >= 0;
  }

  /** Puts into came what has come; how many bytes, negative: the connection is over. receiving is held. */
  private int receive() throws IOException {
    in.clear();
    int n = channel.read(in);
    if (n > 0) {
      in.flip().get(came, 0, n);
    }
    return n;
  }

  /** Takes what has come, whoever else reads, and does not wait. */
  private void catchUp() {
    boolean isOver = false;
    receiving.lock();
    try {
      for (int i = 0; i < MOST_UNREAD && !isOver; i++) {
        int n = receive();
        if (n == 0) {
          break;
        }
        isOver = n < 0;
        if (!isOver) {
          feed(n);
        }
      }
    } catch (IOException | RuntimeException e) {
      return; // it is broken or closed, which who reads sees
    } finally {
      receiving.unlock();
    }
    if (isOver) {
      ended(gone(null));
      return;
    }
    selector.wakeup(); // who reads may wait for what was taken
    sending.flush();
  }

  private void feed(int n) {
    core.mu.lock();
    try {
      core.feed(came, n);
    } finally {
      core.mu.unlock();
    }
  }

  /** The answer, or why there is none; the thread is marked as interrupted afterwards if it was. */
  Json answer(Call c) {
    readFor(c);
    return Answers.get(c.answer);
  }

  /** The same, unless the thread is interrupted. */
  Json answerInterruptibly(Call c) throws InterruptedException {
    readFor(c);
    return Answers.getInterruptibly(c.answer);
  }

  /** Reads until the answer is there, or the thread is interrupted; or not at all, where another thread reads. */
  private void readFor(Call c) {
    core.mu.lock();
    try {
      if (!reading.begin(c)) {
        return;
      }
    } finally {
      core.mu.unlock();
    }
    try {
      while (!c.answer.isDone() && !Thread.currentThread().isInterrupted()) {
        if (!serve()) {
          ended(gone(null));
        }
      }
    } catch (IOException | RuntimeException | Error e) { // as in run
      ended(gone(e));
    } finally {
      core.mu.lock();
      try {
        reading.passOn();
      } finally {
        core.mu.unlock();
      }
    }
  }

  /** Sees to it that the session's thread reads: an answer that no thread waits for, or news for who listens. */
  void expect() {
    core.mu.lock();
    try {
      reading.expect();
    } finally {
      core.mu.unlock();
    }
  }

  /** Tells of a loss, at once where it has happened already. */
  void listen(Held h, Held.Listener listener) {
    core.holds.listen(h, listener);
    expect();
  }

  /**
   * After how many nanoseconds to look at the clock again; negative: it is over. Where more may have come, that is read
   * first: what stands unread here is no silence of the sidecar.
   */
  private long take(int n, boolean more) {
    core.mu.lock();
    try {
      if (n > 0) {
        core.feed(came, n);
      }
      long now = System.nanoTime();
      stoodStill = !stoodStill && now - lookBy > Core.MORE;
      if (stoodStill) {
        core.standStill();
      }
      long next = more ? 0 : core.look();
      lookBy = now + next;
      boolean hangsUp = core.end() != null && !core.end().reason().equals(Loss.CLOSED);
      return hangsUp ? -1 : next;
    } finally {
      core.mu.unlock();
    }
  }

  // --- the end

  private SidecarException gone(Throwable e) {
    core.mu.lock();
    try {
      boolean opened = core.isOpened();
      String message =
          opened
              ? "the connection to the sidecar at " + socket + " ended"
              : "the sidecar at " + socket + " ended the connection before it answered";
      return new SidecarUnavailableException(Loss.GONE, e == null ? message : message + ": " + e, e, !opened);
    } finally {
      core.mu.unlock();
    }
  }

  private void ended(SidecarException why) {
    finish(why, Loss.GONE, "the connection to the sidecar ended");
    disconnect();
  }

  private boolean finish(SidecarException why, String lostReason, String message) {
    core.mu.lock();
    try {
      return core.end(why, lostReason, message, sending == null ? 0 : sending.sent());
    } finally {
      core.mu.unlock();
    }
  }

  /**
   * Ends the session and releases its locks. It returns when the sidecar has done so, or does not
   * answer; then the sidecar does it as soon as it sees that the connection has ended.
   */
  void close() {
    String closed = "this program has closed the session";
    finish(new SidecarUnavailableException(Loss.CLOSED, closed, null), Loss.CLOSED, closed);
    SocketChannel c = channel;
    if (c != null) {
      try {
        c.shutdownOutput();
        selector.wakeup(); // a caller who reads has his answer
        expect();
        Answers.settle(over, Core.OVERDUE);
      } catch (IOException | RuntimeException e) {
        // it has ended already, or was not connected yet
      }
    }
    disconnect();
  }

  /** Ends the connection; then it is over, and the thread that serves it goes. */
  private void disconnect() {
    try {
      if (channel != null) {
        channel.close();
      }
      if (selector != null) {
        selector.close();
      }
    } catch (IOException e) {
      // nobody uses it any more
    } finally {
      over.complete(null);
    }
  }
}
