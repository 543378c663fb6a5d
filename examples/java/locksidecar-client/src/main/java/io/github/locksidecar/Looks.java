package io.github.locksidecar;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.AsynchronousCloseException;
import java.nio.channels.ClosedByInterruptException;
import java.nio.channels.ClosedChannelException;
import java.nio.channels.SocketChannel;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.HashSet;
import java.util.Map;
import java.util.Objects;
import java.util.Queue;
import java.util.Set;
import java.util.Spliterator;
import java.util.Spliterators;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import java.util.function.Consumer;
import java.util.stream.Stream;
import java.util.stream.StreamSupport;

/** Looks at who holds what, each on a connection of its own, without a session. */
final class Looks {
  private static final Duration LIMIT = Duration.ofSeconds(10);
  private static final long LONGEST_PAUSE = TimeUnit.MILLISECONDS.toNanos(500);

  private final Path socket;

  Looks(Path socket) {
    this.socket = socket;
  }

  /** A question that changes nothing. A sidecar that hangs up, as it does to make room, is asked again for a while. */
  Json ask(String kind, Json body, String answer) {
    long end = System.nanoTime() + LIMIT.toNanos();
    for (long pause = TimeUnit.MILLISECONDS.toNanos(10); ; pause = Math.min(2 * pause, LONGEST_PAUSE)) {
      try {
        return tell(kind, body, answer, LIMIT);
      } catch (SidecarUnavailableException e) {
        if (!e.passes || end - System.nanoTime() < pause) {
          throw e;
        }
      }
      LockSupport.parkNanos(pause);
    }
  }

  /** A question that is asked once. */
  Json tell(String kind, Json body, String answer, Duration limit) {
    try (Question q = new Question(kind, body)) {
      return q.within(limit).next(answer);
    }
  }

  /** A question with answers until the stream is closed. The first call to the sidecar is made here. */
  Stream<Json> stream(String kind, Json body, String answer) {
    Question q = new Question(kind, body);
    Spliterator<Json> answers =
        new Spliterators.AbstractSpliterator<>(Long.MAX_VALUE, Spliterator.ORDERED | Spliterator.NONNULL) {
          @Override
          public boolean tryAdvance(Consumer<? super Json> action) {
            Json next = q.next(answer);
            if (next != null) {
              action.accept(next);
            }
            return next != null;
          }
        };
    return StreamSupport.stream(answers, false).onClose(q::close);
  }

  /**
   * What a list has, page by page; the answer has the rows under its own name.
   *
   * @throws IncompleteException by the stream, after that: some shards did not answer, maybe for some pages only
   */
  Stream<Json> pages(String kind, Json body, String answer) {
    body.with("partial", true);
    Set<String> missing = new HashSet<>();
    return Stream.iterate(
            page(kind, body, answer, ""),
            Objects::nonNull,
            p -> next(kind, body, answer, p, missing))
        .flatMap(p -> p.objects(answer).stream());
  }

  private Json next(String kind, Json body, String answer, Json page, Set<String> missing) {
    missing.addAll(page.texts("missingShards"));
    String token = page.text("nextPageToken");
    if (!token.isEmpty()) {
      return page(kind, body, answer, token);
    }
    if (!missing.isEmpty()) {
      throw new IncompleteException(missing);
    }
    return null;
  }

  private Json page(String kind, Json body, String answer, String token) {
    return ask(kind, body.with("pageSize", 1000).with("pageToken", token), answer);
  }

  /** A connection. Its reads block, so an interrupt ends it; a virtual thread leaves its carrier meanwhile. */
  private final class Question implements AutoCloseable {
    private final SocketChannel channel;
    private final ByteBuffer in = ByteBuffer.allocate(1 << 14);
    private final Lines lines = new Lines();
    private final Queue<String> came = new ArrayDeque<>();
    private volatile boolean closed;
    private volatile boolean late;
    private CompletableFuture<Void> limit;

    Question(String kind, Json body) {
      channel = SocketPath.connect(socket);
      try {
        channel.configureBlocking(true);
        ByteBuffer request = ByteBuffer.wrap(Lines.of("1", kind, body));
        while (request.hasRemaining()) {
          channel.write(request);
        }
      } catch (IOException e) {
        close();
        throw broken(e);
      }
    }

    Question within(Duration time) {
      limit = new CompletableFuture<Void>().completeOnTimeout(null, time.toMillis(), TimeUnit.MILLISECONDS);
      limit.thenRun(
          () -> {
            late = true;
            hangUp();
          });
      return this;
    }

    /** The next answer; null: this was closed. */
    Json next(String answer) {
      try {
        while (came.isEmpty()) {
          in.clear();
          int n = channel.read(in);
          if (n < 0) {
            throw gone(null);
          }
          lines.feed(in.array(), n, came::add);
        }
      } catch (IOException e) {
        if (closed && !late) {
          return null;
        }
        throw broken(e);
      }
      try {
        Json m = Json.parse(came.remove());
        if (m.has("error")) {
          throw SidecarException.read(m.object("error"));
        }
        return Objects.requireNonNull(m.object(answer), answer);
      } catch (IllegalArgumentException | ClassCastException | NullPointerException e) {
        String message = "what answers at " + socket + " is no sidecar, or another one than this client knows: " + e;
        throw new SidecarUnavailableException("NO_SIDECAR", message, e);
      }
    }

    private SidecarException broken(IOException e) {
      if (late) {
        return SidecarUnavailableException.silent("the sidecar at " + socket);
      }
      if (e instanceof ClosedByInterruptException) {
        return SidecarException.of("CANCELLED", "the thread was interrupted", Map.of(), e);
      }
      return e instanceof AsynchronousCloseException || e instanceof ClosedChannelException
          ? new SidecarUnavailableException(Loss.CLOSED, "this program has closed the connection", e)
          : gone(e);
    }

    private SidecarUnavailableException gone(IOException e) {
      return new SidecarUnavailableException(Loss.GONE, "the sidecar at " + socket + " ended the connection", e, true);
    }

    private void hangUp() {
      try {
        channel.close();
      } catch (IOException e) {
        // nobody uses it any more
      }
    }

    @Override
    public void close() {
      closed = true;
      if (limit != null) {
        limit.cancel(false);
      }
      hangUp();
    }
  }
}
