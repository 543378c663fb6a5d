package io.github.locksidecar;

import java.io.IOException;
import java.net.StandardProtocolFamily;
import java.net.UnixDomainSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Queue;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.atomic.AtomicInteger;

/**
 * A socket before a sidecar's that hangs up on the first calls, as a sidecar does to make
 * room; on every other after it has read something.
 */
final class Relay implements AutoCloseable {
  final Path socket;
  final AtomicInteger hungUp = new AtomicInteger();

  private final Path dir;
  private final Path sidecar;
  private volatile int calls;
  private final ServerSocketChannel server;
  private final Queue<SocketChannel> apps = new ConcurrentLinkedQueue<>();

  Relay(TestSidecar sidecar, int calls) throws IOException {
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
      start(() -> copy(behind, app));
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
