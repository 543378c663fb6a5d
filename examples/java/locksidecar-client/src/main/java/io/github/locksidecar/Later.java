package io.github.locksidecar;

import java.util.ArrayDeque;
import java.util.Queue;
import java.util.concurrent.Executor;
import java.util.concurrent.locks.ReentrantLock;

/**
 * Code of the app for which no thread could be started. The threads that read try again: they must not
 * run it themselves, and what cannot be run now must cost neither them nor another lock.
 */
final class Later {
  private static final ReentrantLock MU = new ReentrantLock();
  private static final Queue<Runnable> WAITING = new ArrayDeque<>(); // guarded by MU
  private static volatile boolean any;

  private Later() {}

  /** The same executor, which runs later what it has no thread for now. */
  static Executor over(Executor threads) {
    return task -> {
      try {
        threads.execute(task);
      } catch (OutOfMemoryError e) { // as Java says that no thread is to be had
        MU.lock();
        try {
          WAITING.add(() -> threads.execute(task));
          any = true;
        } finally {
          MU.unlock();
        }
      }
    };
  }

  /** Tells whether nothing waits for a thread any more. */
  static boolean again() {
    if (!any) {
      return true;
    }
    MU.lock();
    try {
      for (; !WAITING.isEmpty(); WAITING.remove()) {
        WAITING.element().run();
      }
      any = false;
      return true;
    } catch (OutOfMemoryError e) {
      return false;
    } finally {
      MU.unlock();
    }
  }
}
