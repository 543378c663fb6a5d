package io.github.locksidecar;

import static java.util.concurrent.TimeUnit.NANOSECONDS;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.function.Function;
import java.util.function.ToLongFunction;

/** The steps of a case that are about who leads. */
final class ContractLeaders {
  private final Function<String, LockSidecar> clients;
  private final ToLongFunction<String> fences; // of holds
  private final Map<String, BlockingQueue<Leader>> watches = new HashMap<>();

  ContractLeaders(Function<String, LockSidecar> clients, ToLongFunction<String> fences) {
    this.clients = clients;
    this.fences = fences;
  }

  void leader(Json s) {
    long end = System.nanoTime() + s.number("within") * 1_000_000;
    while (true) {
      Leader leader = clients.apply(s.text("client")).leader(s.text("resource"));
      if (leads(s, leader)) {
        return;
      }
      assertTrue(System.nanoTime() < end, leader.toString());
      TestSidecar.pause(5);
    }
  }

  private boolean leads(Json s, Leader leader) {
    boolean somebody = s.has("value");
    return leader.leads() == somebody
        && leader.value().equals(s.text("value"))
        && (!s.has("hold") || leader.holder().orElseThrow().fence() == fences.applyAsLong(s.text("hold")))
        && (!s.has("candidates") || leader.candidates() == s.number("candidates"));
  }

  void watch(Json s) {
    var leaders = clients.apply(s.text("client")).watchLeader(s.text("resource"), Duration.ofMillis(s.number("interval")));
    watches.put(s.text("watch"), SurfaceTest.read(leaders, new CompletableFuture<>())); // it ends with its sidecar
  }

  void told(Json s) throws InterruptedException {
    long end = System.nanoTime() + s.number("within") * 1_000_000;
    Leader last = null;
    while (last == null || !leads(s, last)) {
      Leader next = watches.get(s.text("watch")).poll(end - System.nanoTime(), NANOSECONDS);
      assertNotNull(next, "it was not told in time; before that: " + last);
      last = next;
    }
  }
}
