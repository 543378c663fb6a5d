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
      ContractCase.stop(8_000);
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
}
