package io.github.locksidecar;

import java.io.IOException;
import java.net.StandardProtocolFamily;
import java.net.UnixDomainSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Queue;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.atomic.AtomicInteger;

/**
 * A socket before a sidecar's. One hangs up on the first calls, as a sidecar does to make room; on
 * every other after it has read something. Another withholds a kind of news.
 */
final class Relay implements AutoCloseable {
  final Path socket;
  final AtomicInteger hungUp = new AtomicInteger();

  /** How many lines of the sidecar's were withheld. */
  final AtomicInteger withheld = new AtomicInteger();

  private final Path dir;
  private final String without; // the field of the events that are withheld; empty: none
  private final Path sidecar;
  private volatile int calls;
  private final ServerSocketChannel server;
  private final Queue<SocketChannel> apps = new ConcurrentLinkedQueue<>();

  Relay(TestSidecar sidecar, int calls) throws IOException {
    this(sidecar, calls, "");
  }

  /** One that withholds each event that has a field. */
  Relay(TestSidecar sidecar, String without) throws IOException {
    this(sidecar, 0, without);
  }

  private Relay(TestSidecar sidecar, int calls, String without) throws IOException {
    this.without = without;
    this.sidecar = sidecar.socket;
    this.calls = calls;
    this.dir = Files.createTempDirectory("lsr");
    this.socket = dir.resolve("s");
    this.server = ServerSocketChannel.open(StandardProtocolFamily.UNIX);
    server.bind(UnixDomainSocketAddress.of(socket));
    start(this::accept);
  }

  private interface Work {
    void run() throws IOException;
  }

  private static void start(Work work) {
    Thread t =
        new Thread(
            () -> {
              try {
                work.run();
              } catch (IOException e) {
                // a connection ended, or the relay
              }
            });
    t.setDaemon(true);
    t.start();
  }

  private void accept() throws IOException {
    while (true) {
      SocketChannel app = server.accept();
      if (hungUp.get() < calls) {
        if (hungUp.incrementAndGet() % 2 == 0) {
          app.read(ByteBuffer.allocate(1));
        }
        app.close();
        continue;
      }
      apps.add(app);
      SocketChannel behind = SocketChannel.open(UnixDomainSocketAddress.of(sidecar));
      start(() -> copy(app, behind));
      start(() -> hand(behind, app));
    }
  }

  private static void copy(SocketChannel from, SocketChannel to) throws IOException {
    try (from;
        to) {
      ByteBuffer b = ByteBuffer.allocate(1 << 16);
      while (from.read(b) >= 0) {
        b.flip();
        while (b.hasRemaining()) {
          to.write(b);
        }
        b.clear();
      }
    }
  }

  /** Hands on what the sidecar says, line by line. */
  private void hand(SocketChannel from, SocketChannel to) throws IOException {
    Lines lines = new Lines();
    try (from;
        to) {
      ByteBuffer b = ByteBuffer.allocate(1 << 16);
      while (from.read(b) >= 0) {
        StringBuilder on = new StringBuilder();
        lines.feed(
            b.array(),
            b.position(),
            line -> {
              Json event = without.isEmpty() ? null : Json.parse(line).object("event");
              if (event != null && event.has(without)) {
                withheld.incrementAndGet();
              } else {
                on.append(line).append('\n');
              }
            });
        ByteBuffer out = StandardCharsets.UTF_8.encode(on.toString());
        while (out.hasRemaining()) {
          to.write(out);
        }
        b.clear();
      }
    }
  }

  /** On all that have called, and on all that will. */
  void hangUp() throws IOException {
    calls = Integer.MAX_VALUE;
    for (SocketChannel app : apps) {
      app.close();
    }
  }

  @Override
  public void close() throws IOException {
    server.close();
    Files.delete(socket);
    Files.delete(dir);
  }
}
