package io.github.locksidecar;

import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.parallel.Isolated;

@Isolated("all threads of the process stand still")
class StoodStillTest {

  /** More answers than one read brings, or the socket has room for, stand unread when this process goes on. */
  @Test
  void unreadIsNoSilence() throws Exception {
    try (TestSidecar sidecar = TestSidecar.start("--ttl", "60s");
        LockSidecar locks = sidecar.connect()) {
      Hold held = locks.lock("r").acquire();
      List<CompletableFuture<Hold>> all = new ArrayList<>();
      for (int i = 0; i < 500; i++) {
        all.add(locks.lock("r").acquireAsync(Duration.ofSeconds(1)));
      }
      TestSidecar.eventually("waiting", () -> sidecar.waiters() == 500);
      TestSidecar.stopThisProcess(8_000).waitFor();
      Set<String> reasons = new TreeSet<>();
      for (CompletableFuture<Hold> one : all) {
        try {
          one.get();
          reasons.add("granted");
        } catch (ExecutionException e) {
          reasons.add(((SidecarException) e.getCause()).reason());
        }
      }
      assertTrue(reasons.contains("WAIT_TIMEOUT"), reasons.toString());
      assertFalse(reasons.contains("SIDECAR_SILENT"), reasons.toString());
      held.close();
    }
  }

  /** Nobody reads between two calls for longer than a hold may be relied on without news. Who asks about it reads them. */
  @Test
  void unreadNewsCount() throws Exception {
    long usual = Reading.pause;
    Reading.pause = TimeUnit.MINUTES.toNanos(5);
    try (TestSidecar sidecar = TestSidecar.start("--ttl", "3s");
        LockSidecar locks = sidecar.connect()) {
      FutureTask<Hold> task =
          new FutureTask<>(
              () -> {
                for (int i = 0; i < 100; i++) {
                  locks.lock("r").acquire().close();
                }
                return locks.lock("r").acquire();
              });
      new Thread(task).start();
      Hold held = task.get(60, TimeUnit.SECONDS);
      for (int i = 0; i < 2; i++) {
        Thread.sleep(4_000);
        held.check();
        assertTrue(held.validFor().toMillis() > 0 && !held.isLost());
      }
      held.close();
    } finally {
      Reading.pause = usual;
    }
  }
}
