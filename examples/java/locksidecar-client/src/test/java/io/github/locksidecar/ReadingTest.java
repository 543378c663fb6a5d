package io.github.locksidecar;

import static java.util.concurrent.TimeUnit.SECONDS;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ForkJoinPool;
import java.util.concurrent.Future;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.parallel.Execution;
import org.junit.jupiter.api.parallel.ExecutionMode;

/** Callers who come one at a time read their own answers. */
@Execution(ExecutionMode.CONCURRENT)
class ReadingTest {
  static {
    Reading.pause = TimeUnit.MILLISECONDS.toNanos(100);
  }

  /** A thread that waits for a lock. */
  private static final class Waiter {
    final FutureTask<Hold> got;
    final Thread thread;

    Waiter(SidecarLock lock) {
      got = new FutureTask<>(() -> lock.acquire());
      thread = new Thread(got);
      thread.setDaemon(true);
      thread.start();
    }

    SidecarException refused() {
      ExecutionException e = assertThrows(ExecutionException.class, () -> got.get(60, SECONDS));
      return (SidecarException) e.getCause();
    }
  }

  static boolean reads(Thread t) {
    return Stream.of(t.getStackTrace()).anyMatch(f -> f.getMethodName().equals("readFor"));
  }

  /** Of a thread of its own: those of the tests are a pool's. */
  private static void pairs(SidecarLock lock) {
    FutureTask<Void> task =
        new FutureTask<>(
            () -> {
              for (int i = 0; i < 300; i++) {
                lock.acquire().close();
              }
              return null;
            });
    new Thread(task).start();
    await(task);
  }

  /** Somebody else holds the lock, and one who has come often enough to read by himself waits for it. */
  private static Waiter reader(TestSidecar sidecar, SidecarLock lock) throws InterruptedException {
    for (long end = System.nanoTime() + TestSidecar.PATIENCE.toNanos(); System.nanoTime() < end; ) {
      pairs(lock);
      LockSidecar other = sidecar.connect();
      Hold theirs = other.lock(lock.resource()).acquire();
      Waiter w = new Waiter(lock);
      TestSidecar.eventually("waiting", () -> sidecar.waiters() == 1);
      if (reads(w.thread)) {
        return w; // the other's session, and what it holds, ends with the sidecar or by force
      }
      other.close(); // nobody came for two pauses: the session's own thread reads
      assertEquals(lock.resource(), theirs.resource());
      await(w.got).close();
    }
    throw new AssertionError("no caller reads");
  }

  private static <T> T await(Future<T> of) {
    try {
      return of.get(60, SECONDS);
    } catch (Exception e) {
      throw new AssertionError(e);
    }
  }

  /** Whatever else the session is asked meanwhile is answered, too. */
  @Test
  void othersAreAnswered() throws Exception {
    try (TestSidecar sidecar = TestSidecar.start();
        LockSidecar locks = sidecar.connect()) {
      Waiter w = reader(sidecar, locks.lock("r"));
      for (int i = 0; i < 20; i++) {
        locks.lock("other").acquire().close();
        await(locks.lock("future").acquireAsync().thenCompose(Hold::closeAsync));
      }
      assertTrue(reads(w.thread), "it waits no more");
      sidecar.force("r", "0s");
      await(w.got).close();
      await(locks.lock("r").acquireAsync().thenCompose(Hold::closeAsync));
      try (Hold again = locks.lock("r").acquire()) {
        again.check();
      }
      assertEquals(0, sidecar.holds());
    }
  }

  /** An interrupt ends the wait of its thread, and not the connection. */
  @Test
  void interrupted() throws Exception {
    try (TestSidecar sidecar = TestSidecar.start();
        LockSidecar locks = sidecar.connect()) {
      Hold held = locks.lock("held").acquire();
      Waiter w = reader(sidecar, locks.lock("r"));
      w.thread.interrupt();
      ExecutionException e = assertThrows(ExecutionException.class, () -> w.got.get(60, SECONDS));
      assertEquals(InterruptedException.class, e.getCause().getClass());
      TestSidecar.eventually("left", () -> sidecar.waiters() == 0);
      locks.lock("next").acquire().close();
      held.check();
      held.close();
    }
  }

  /** Who may not be interrupted goes on to wait, and is marked. */
  @Test
  void interruptedInVain() throws Exception {
    try (TestSidecar sidecar = TestSidecar.start();
        LockSidecar locks = sidecar.connect()) {
      SidecarLock lock = locks.lock("r");
      pairs(lock);
      LockSidecar other = sidecar.connect();
      other.lock("r").lock();
      FutureTask<Boolean> waits =
          new FutureTask<>(
              () -> {
                lock.lock();
                lock.unlock();
                return Thread.interrupted();
              });
      Thread thread = new Thread(waits);
      thread.start();
      TestSidecar.eventually("waiting", () -> sidecar.waiters() == 1);
      thread.interrupt();
      TestSidecar.eventually("left to the session's thread", () -> !reads(thread));
      other.close();
      assertTrue(await(waits));
    }
  }

  @Test
  void closed() throws Exception {
    try (TestSidecar sidecar = TestSidecar.start();
        LockSidecar locks = sidecar.connect()) {
      Hold held = locks.lock("held").acquire();
      Waiter w = reader(sidecar, locks.lock("r"));
      locks.close();
      assertEquals("SESSION_CLOSED", w.refused().reason());
      TestSidecar.eventually("released", () -> sidecar.waiters() == 0 && sidecar.holds() == 1);
      assertEquals("SESSION_CLOSED", assertThrows(LockLostException.class, held::check).lostReason());
    }
  }

  @Test
  void killed() throws Exception {
    try (TestSidecar sidecar = TestSidecar.start();
        LockSidecar locks = sidecar.connect()) {
      Hold held = locks.lock("held").acquire();
      Waiter w = reader(sidecar, locks.lock("r"));
      sidecar.kill();
      assertEquals("SIDECAR_GONE", w.refused().reason());
      assertTrue(held.isLost());
      sidecar.restart();
      locks.lock("r").acquire().close();
    }
  }

  /** Its caller reads, and looks at the clock: of a sidecar that is frozen nobody else would tell. */
  @Test
  void frozen() throws Exception {
    try (TestSidecar sidecar = TestSidecar.start("--ttl", "2s");
        LockSidecar locks = sidecar.connect()) {
      Hold held = locks.lock("held").acquire();
      Waiter w = reader(sidecar, locks.lock("r"));
      sidecar.freeze();
      assertEquals("SIDECAR_SILENT", w.refused().reason());
      assertTrue(held.isLost());
      sidecar.thaw();
    }
  }

  /** A loss is told while a caller reads, to who listens since before, or since then. */
  @Test
  void lossIsToldMeanwhile() throws Exception {
    try (TestSidecar sidecar = TestSidecar.start();
        LockSidecar locks = sidecar.connect()) {
      Hold one = locks.lock("one").acquire();
      Hold two = locks.lock("two").acquire();
      Waiter w = reader(sidecar, locks.lock("r"));
      CompletableFuture<LockLostException> loss = LossTest.lossOf(one);
      sidecar.force("one", "0s");
      assertEquals("FORCED", await(loss).lostReason());
      sidecar.force("two", "0s");
      TestSidecar.eventually("lost", two::isLost);
      sidecar.force("r", "0s");
      await(w.got).close();
    }
  }

  /** Between two calls nobody reads for a moment. */
  @Test
  void lossComesBetweenCalls() throws Exception {
    try (TestSidecar sidecar = TestSidecar.start();
        LockSidecar locks = sidecar.connect()) {
      for (int i = 0; i < 20; i++) {
        Hold held = locks.lock("held").acquire();
        pairs(locks.lock("r"));
        sidecar.force("held", "0s");
        TestSidecar.eventually("lost", held::isLost);
        assertThrows(LockLostException.class, held::close);
      }
    }
  }

  /** The threads of a pool that makes up for who waits do not read: it would not know. */
  @Test
  void poolIsNotHeldUp() throws Exception {
    ForkJoinPool pool = new ForkJoinPool(1);
    try (TestSidecar sidecar = TestSidecar.start();
        LockSidecar locks = sidecar.connect()) {
      Hold held = locks.lock("r").acquire();
      pairs(locks.lock("other"));
      Future<Hold> waits = pool.submit(() -> locks.lock("r").acquire(Duration.ofSeconds(60)));
      TestSidecar.eventually("waiting", () -> sidecar.waiters() == 1);
      assertEquals("more", await(pool.submit(() -> "more")), "another thread takes its place");
      held.close();
      await(waits).close();
    } finally {
      pool.shutdownNow();
    }
  }
}
