package io.github.locksidecar;

import java.util.concurrent.Executor;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.SynchronousQueue;
import java.util.concurrent.ThreadFactory;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;

/** Daemon threads with a name: none of them keeps the app from ending. */
final class Threads implements ThreadFactory {
  private static final long IDLE_SECONDS = 5;

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

  /** As many threads as it takes: what is run never waits for something else. */
  static Executor asNeeded(String name) {
    return new ThreadPoolExecutor(
        0, Integer.MAX_VALUE, IDLE_SECONDS, TimeUnit.SECONDS, new SynchronousQueue<>(), new Threads(name));
  }

  /** A few threads, however much there is to do. */
  static Executor few(String name) {
    return bounded(name, Math.max(4, 2 * Runtime.getRuntime().availableProcessors()));
  }

  private static Executor bounded(String name, int threads) {
    ThreadPoolExecutor pool =
        new ThreadPoolExecutor(
            threads, threads, IDLE_SECONDS, TimeUnit.SECONDS, new LinkedBlockingQueue<>(), new Threads(name));
    pool.allowCoreThreadTimeOut(true);
    return pool;
  }

  /**
   * An app's executor. It is called by one thread of our own: it may block, or run what it is given
   * at once, and the thread that reads what the sidecar says must do neither.
   */
  static Executor through(String name, Executor executor) {
    Executor hands = bounded(name, 1);
    return task ->
        hands.execute(
            () -> {
              try {
                executor.execute(task);
              } catch (RejectedExecutionException e) {
                task.run(); // it was shut down: who waits for a future must not wait for ever
              }
            });
  }
}
