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
    Thread t = new Thread(r, "locksidecar-" + name + "-" + last.incrementAndGet());
    t.setDaemon(true);
    return t;
  }
}
