package io.github.locksidecar;

import java.util.concurrent.ThreadFactory;
import java.util.concurrent.atomic.AtomicLong;

/** Daemon threads with a name: none of them keeps the app from ending. */
final class Threads implements ThreadFactory {
  private final String name;
  private final AtomicLong last = new AtomicLong();

  Threads(String name) {
    this.name = name;
  }

  @Override
  public Thread newThread(Runnable r) {
    // Without the thread-locals and the class loader of whoever happened to come first.
    Thread t = new Thread(null, r, "locksidecar-" + name + "-" + last.incrementAndGet(), 0, false);
    t.setDaemon(true);
    return t;
  }
}
