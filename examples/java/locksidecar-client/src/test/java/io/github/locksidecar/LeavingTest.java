package io.github.locksidecar;

import static java.util.concurrent.TimeUnit.MILLISECONDS;
import static java.util.concurrent.TimeUnit.SECONDS;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicReference;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;

/** Who does not want the lock any more leaves nothing behind: no hold, and no place in the queue. */
class LeavingTest {
  static TestSidecar sidecar;
  static LockSidecar locks;

  @BeforeAll
  static void start() {
    sidecar = TestSidecar.start();
    locks = sidecar.connect();
  }

  @AfterAll
  static void stop() {
    locks.close();
    sidecar.close();
  }

  @AfterEach
  void nothingIsLeft() {
    TestSidecar.eventually("free", () -> sidecar.holds() == 0 && sidecar.waiters() == 0);
  }

  interface Waiting {
    void run() throws Exception;
  }

  /** A thread that waits for the lock, and what became of it. */
  static final class Waiter {
    final AtomicReference<Throwable> end = new AtomicReference<>();
    final Thread thread;

    Waiter(Waiting w) {
      thread =
          new Thread(
              () -> {
                try {
                  w.run();
                } catch (Throwable e) {
                  end.set(e);
                }
              });
      thread.start();
    }

    Throwable join() throws InterruptedException {
      thread.join(20_000);
      return end.get();
    }
  }

  static void waiting() {
    TestSidecar.eventually("waiting", () -> sidecar.waiters() == 1);
  }

  @Test
  void interrupted() throws Exception {
    SidecarLock lock = locks.lock("r");
    Waiting[] ways = {
      lock::lockInterruptibly,
      lock::acquire,
      () -> lock.acquire(Duration.ofSeconds(20)),
      () -> lock.tryAcquire(Duration.ofSeconds(20)),
      () -> lock.tryLock(20, SECONDS),
    };
    try (Hold hold = lock.acquire()) {
      for (Waiting way : ways) {
        Waiter w = new Waiter(way);
        waiting();
        w.thread.interrupt();
        assertEquals(InterruptedException.class, w.join().getClass());
        TestSidecar.eventually("left", () -> sidecar.waiters() == 0);
      }
    }
    for (Waiting way : ways) { // before it asks
      Thread.currentThread().interrupt();
      assertThrows(InterruptedException.class, way::run);
    }
  }

  @Test
  void lockIsNotInterrupted() throws Exception {
    SidecarLock lock = locks.lock("r");
    Hold hold = lock.acquire();
    AtomicReference<Boolean> marked = new AtomicReference<>();
    Waiter w =
        new Waiter(
            () -> {
              lock.lock();
              marked.set(Thread.currentThread().isInterrupted());
              lock.unlock(); // nor is this
            });
    waiting();
    w.thread.interrupt();
    TestSidecar.pause(20);
    assertEquals(1, sidecar.waiters());
    hold.close();
    assertEquals(null, w.join());
    assertEquals(true, marked.get());
  }

  /** The interrupt and the grant meet each other in every order. */
  @Test
  void interruptedAsItIsGranted() throws Exception {
    SidecarLock lock = locks.lock("r");
    int granted = 0;
    for (int i = 0; i < 60; i++) {
      Hold hold = lock.acquire();
      Waiter w =
          new Waiter(
              () -> {
                lock.lockInterruptibly();
                lock.unlock();
              });
      waiting();
      CompletableFuture<Void> released = hold.closeAsync();
      busy(ThreadLocalRandom.current().nextInt(400_000));
      w.thread.interrupt();
      Throwable end = w.join();
      if (end == null) {
        granted++;
      } else {
        assertEquals(InterruptedException.class, end.getClass());
      }
      released.get(20, SECONDS);
      TestSidecar.eventually("free", () -> sidecar.holds() == 0 && sidecar.waiters() == 0);
    }
    assertTrue(granted < 60, "none was interrupted");
  }

  /** An interrupt is for who waits, and not for the connection that all share. */
  @Test
  void whoIsInterruptedDoesNotCloseTheConnection() throws Exception {
    try (LockSidecar c = sidecar.connect();
        Hold witness = c.lock("witness").acquire()) {
      for (int i = 0; i < 50; i++) {
        Thread.currentThread().interrupt();
        c.lock("r").lock(); // is not interrupted
        c.lock("r").unlock();
        assertTrue(c.lock("r").tryLock());
        c.lock("r").hold().close();
        assertTrue(Thread.currentThread().isInterrupted());
        assertThrows(InterruptedException.class, c.lock("r")::acquire);
      }
      witness.check();
    }
  }

  static void busy(long nanos) {
    for (long end = System.nanoTime() + nanos; System.nanoTime() < end; ) {
      Thread.onSpinWait();
    }
  }

  @Test
  void cancelled() throws Exception {
    SidecarLock lock = locks.lock("r");
    Hold hold = lock.acquire();
    CompletableFuture<Hold> f = lock.acquireAsync();
    waiting();
    f.cancel(false);
    TestSidecar.eventually("left", () -> sidecar.waiters() == 0);
    f = lock.acquireAsync();
    waiting();
    CompletableFuture<Hold> late = f.orTimeout(10, MILLISECONDS);
    assertEquals(TimeoutException.class, assertThrows(Exception.class, () -> late.get(20, SECONDS)).getCause().getClass());
    TestSidecar.eventually("left", () -> sidecar.waiters() == 0);
    hold.close();
  }

  @Test
  void cancelledAsItIsGranted() throws Exception {
    SidecarLock lock = locks.lock("r");
    for (int i = 0; i < 60; i++) {
      Hold hold = lock.acquire();
      CompletableFuture<Hold> f = lock.acquireAsync();
      waiting();
      hold.closeAsync();
      busy(ThreadLocalRandom.current().nextInt(400_000));
      if (!f.cancel(false)) {
        f.get().close();
      }
      TestSidecar.eventually("free", () -> sidecar.holds() == 0 && sidecar.waiters() == 0);
    }
  }
}
