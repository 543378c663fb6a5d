package io.github.locksidecar;

import static java.util.concurrent.TimeUnit.MILLISECONDS;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assertions.fail;

import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeoutException;

/**
 * Runs one case of examples/contract; its README says what each step means. Another step is another
 * line of {@link #STEPS} and its method.
 */
final class ContractCase implements AutoCloseable {
  /** A hold, and its loss with the moment at which it was told. */
  private static final class Grip {
    final Hold hold;
    final CompletableFuture<Told> lost = new CompletableFuture<>();

    Grip(Hold hold) {
      this.hold = hold;
      hold.onLost(e -> lost.complete(new Told(e.lostReason(), System.nanoTime())));
    }
  }

  private record Told(String reason, long at) {}

  /** A request in the background, and the moment at which it was answered. */
  private record Asked(CompletableFuture<Hold> answer, CompletableFuture<Grip> grip, CompletableFuture<Long> at) {}

  /** What a step does. A SidecarException that it throws is what it was refused with. */
  private interface Step {
    void run(ContractCase c, Json step) throws Exception;
  }

  private static final Map<String, Step> STEPS =
      Map.ofEntries(
          Map.entry("acquire", ContractCase::acquire),
          Map.entry("pending", (c, s) -> pending(c.calls.get(s.text("call")), s.number("time"))),
          Map.entry("cancel", (c, s) -> c.calls.get(s.text("call")).answer().cancel(false)),
          Map.entry("answer", ContractCase::answer),
          Map.entry("release", ContractCase::release),
          Map.entry("downgrade", (c, s) -> c.hold(s).downgrade()),
          Map.entry("look", (c, s) -> look(s, c.hold(s))),
          Map.entry("lost", ContractCase::lost),
          Map.entry("rising", ContractCase::rising),
          Map.entry("order", ContractCase::order),
          Map.entry("close", (c, s) -> c.clients.remove(s.text("client")).close()),
          Map.entry("open", (c, s) -> c.open(s.text("client"))),
          Map.entry("freeze", (c, s) -> c.sidecar(s).freeze()),
          Map.entry("thaw", (c, s) -> c.sidecar(s).thaw()),
          Map.entry("kill", (c, s) -> c.sidecar(s).kill()),
          Map.entry("start", (c, s) -> c.sidecar(s).restart()),
          Map.entry("force", ContractCase::force),
          Map.entry("queue", ContractCase::queue),
          Map.entry("pause", (c, s) -> TestSidecar.pause(s.number("time"))));

  private final Json script;
  private final Map<String, TestSidecar> sidecars = new HashMap<>();
  private final Map<String, LockSidecar> clients = new HashMap<>();
  private final Map<String, Grip> grips = new HashMap<>();
  private final Map<String, Asked> calls = new HashMap<>();

  ContractCase(Json script, String store) {
    this.script = script;
    String namespace = "java-" + UUID.randomUUID();
    try {
      script.object("sidecars").names().forEach(name -> sidecars.put(name, start(name, store, namespace)));
      script.object("clients").names().forEach(this::open);
    } catch (RuntimeException | Error e) {
      close();
      throw e;
    }
  }

  private TestSidecar start(String name, String store, String namespace) {
    List<String> flags = new ArrayList<>(List.of("--name", name, "--store", store, "--namespace", namespace));
    script.object("sidecars").textMap(name).forEach((flag, value) -> flags.addAll(List.of("--" + flag, value)));
    return TestSidecar.start(flags.toArray(String[]::new));
  }

  private void open(String client) {
    TestSidecar sidecar = sidecars.get(script.object("clients").text(client));
    clients.computeIfAbsent(client, c -> LockSidecar.builder().socket(sidecar.socket).name(c).connect()).open();
  }

  @Override
  public void close() {
    sidecars.values().forEach(TestSidecar::close); // first: frozen ones would hold up the clients
    clients.values().forEach(LockSidecar::close);
  }

  void run() throws Exception {
    int n = 0;
    for (Json step : script.objects("steps")) {
      n++;
      try {
        step(step);
      } catch (Exception | AssertionError problem) {
        throw new AssertionError("step " + n + " " + step + ": " + problem, problem);
      }
    }
  }

  private void step(Json s) throws Exception {
    Step step = STEPS.get(s.text("do"));
    assertNotNull(step, "the step is not known");
    try {
      step.run(this, s);
    } catch (SidecarException e) {
      refused(s, e);
      return;
    }
    boolean later = s.text("do").equals("acquire") && s.has("call"); // its error comes with the answer
    assertTrue(later || s.text("do").equals("answer") || !s.has("error"), "it succeeded");
  }

  private static void refused(Json s, SidecarException e) {
    if (!s.has("error")) {
      throw e;
    }
    assertEquals(s.text("error"), e.reason(), e.getMessage());
    for (String key : s.texts("metadata")) {
      assertNotEquals("", e.metadata().getOrDefault(key, ""), "no " + key + " in " + e.metadata());
    }
  }

  private Hold hold(Json s) {
    return grips.get(s.text("hold")).hold;
  }

  private TestSidecar sidecar(Json s) {
    return sidecars.get(s.text("sidecar"));
  }

  // --- steps

  private static SidecarLock lock(LockSidecar client, Json s) {
    SidecarReadWriteLock rw = client.readWriteLock(s.text("resource"));
    SidecarLock lock = s.text("mode").equals("SHARED") ? rw.readLock() : rw.writeLock();
    if (s.has("owner")) {
      lock = lock.withOwner(s.text("owner"));
    }
    if (s.flag("reentrant")) {
      lock = lock.reentrant();
    }
    if (s.has("maxHold")) {
      lock = lock.withMaxHold(Duration.ofMillis(s.number("maxHold")));
    }
    return lock;
  }

  private void acquire(Json s) throws Exception {
    SidecarLock lock = lock(clients.get(s.text("client")), s);
    Duration wait = s.has("wait") ? Duration.ofMillis(s.number("wait")) : null;
    if (!s.has("call")) {
      got(s, new Grip(wait == null ? lock.acquire() : lock.acquire(wait)));
      return;
    }
    CompletableFuture<Hold> answer = wait == null ? lock.acquireAsync() : lock.acquireAsync(wait);
    calls.put(s.text("call"), new Asked(answer, answer.thenApply(Grip::new), answer.handle((h, e) -> System.nanoTime())));
  }

  private void got(Json s, Grip grip) {
    if (s.has("hold")) {
      grips.put(s.text("hold"), grip);
    }
    if (s.has("count")) {
      assertEquals(s.number("count"), grip.hold.count());
    }
  }

  private static void pending(Asked asked, long time) throws Exception {
    try {
      asked.answer().get(time, MILLISECONDS);
    } catch (TimeoutException e) {
      return;
    } catch (ExecutionException e) {
      fail("it was answered with " + e.getCause());
    }
    fail("it was granted");
  }

  private void answer(Json s) throws Exception {
    Asked asked = calls.get(s.text("call"));
    try {
      got(s, asked.grip().get(s.number("within"), MILLISECONDS));
    } catch (ExecutionException e) {
      Throwable why = e.getCause();
      if (why instanceof CancellationException) {
        assertEquals(s.text("error"), "CANCELLED");
      } else if (why instanceof SidecarException refusal) {
        refused(s, refusal);
      } else {
        throw e;
      }
      return;
    }
    assertFalse(s.has("error"), "it succeeded");
  }

  private void release(Json s) {
    int left = hold(s).release();
    if (s.has("count")) {
      assertEquals(s.number("count"), left);
    }
  }

  private static void look(Json s, Hold hold) {
    if (s.has("lost")) {
      assertEquals(s.flag("lost"), hold.isLost());
    }
    if (s.has("validFor")) {
      long v = hold.validFor().toNanos();
      List<?> range = s.list("validFor");
      assertTrue(v >= (Long) range.get(0) * 1_000_000 && v <= (Long) range.get(1) * 1_000_000, "it is valid for " + v + " ns");
    }
    if (s.has("mode")) {
      assertEquals(s.text("mode"), hold.mode().name());
    }
    if (s.has("guard")) {
      assertEquals(s.flag("guard"), hold.guard().isPresent());
    }
  }

  private void lost(Json s) throws Exception {
    Grip grip = grips.get(s.text("hold"));
    assertEquals(s.text("reason"), grip.lost.get(s.number("within"), MILLISECONDS).reason());
    assertTrue(grip.hold.isLost());
    assertEquals(Duration.ZERO, grip.hold.validFor());
  }

  private void rising(Json s) {
    long last = 0;
    for (String name : s.texts("holds")) {
      long fence = grips.get(name).hold.fence();
      assertTrue(fence > last, fence + " after " + last);
      last = fence;
    }
  }

  private void order(Json s) {
    long apart = moment(s.text("then")) - moment(s.text("first"));
    assertTrue(apart > 0, "it was " + -apart + " ns too late");
  }

  private long moment(String of) {
    String name = of.substring(of.indexOf(':') + 1);
    if (of.startsWith("lost:")) {
      Told told = grips.get(name).lost.getNow(null);
      assertNotNull(told, name + " is not lost");
      return told.at();
    }
    assertTrue(of.startsWith("got:"), of);
    Long at = calls.get(name).at().getNow(null);
    assertNotNull(at, name + " is not answered");
    return at;
  }

  /** In the background: it returns when the hold is gone. */
  private void force(Json s) {
    TestSidecar sidecar = sidecar(s);
    CompletableFuture.runAsync(() -> sidecar.force(s.text("resource"), s.number("grace") / 1000.0 + "s"));
  }

  private void queue(Json s) {
    String want = s.number("holders") + " " + s.number("waiters");
    long end = System.nanoTime() + s.number("within") * 1_000_000;
    while (true) {
      Json l = sidecar(s).lock(s.text("resource"));
      String is = l.list("holders").size() + " " + l.list("waiters").size();
      if (is.equals(want)) {
        owners(s.texts("owners"), l.objects("holders"));
        return;
      }
      assertTrue(System.nanoTime() < end, "holders and waiters: " + is);
      TestSidecar.pause(5);
    }
  }

  private static void owners(List<String> want, List<Json> holders) {
    for (int i = 0; i < want.size(); i++) {
      String is = holders.get(i).text("owner");
      if (want.get(i).equals("*")) {
        assertNotEquals("", is);
      } else {
        assertEquals(want.get(i), is);
      }
    }
  }
}
