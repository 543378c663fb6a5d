package io.github.locksidecar;

import static java.util.concurrent.TimeUnit.MILLISECONDS;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assertions.fail;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import java.io.IOException;
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

/** Runs one case of examples/contract; its README says what each step means. */
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

  private final JsonObject script;
  private final Map<String, TestSidecar> sidecars = new HashMap<>();
  private final Map<String, LockSidecar> clients = new HashMap<>();
  private final Map<String, Grip> grips = new HashMap<>();
  private final Map<String, Asked> calls = new HashMap<>();
  private final List<CompletableFuture<Void>> forces = new ArrayList<>();

  ContractCase(JsonObject script, String store) {
    this.script = script;
    String namespace = "java-" + UUID.randomUUID();
    try {
      script.getAsJsonObject("sidecars").entrySet().forEach(s -> sidecars.put(s.getKey(), start(s.getKey(), s.getValue().getAsJsonObject(), store, namespace)));
      script.getAsJsonObject("clients").keySet().forEach(this::open);
    } catch (RuntimeException | Error e) {
      close();
      throw e;
    }
  }

  private static TestSidecar start(String name, JsonObject settings, String store, String namespace) {
    List<String> flags = new ArrayList<>(List.of("--name", name, "--store", store, "--namespace", namespace));
    for (Map.Entry<String, JsonElement> f : settings.entrySet()) {
      flags.add("--" + f.getKey());
      flags.add(f.getValue().getAsString());
    }
    return TestSidecar.start(flags.toArray(String[]::new));
  }

  private void open(String client) {
    String sidecar = script.getAsJsonObject("clients").get(client).getAsString();
    LockSidecar before = clients.put(client, sidecars.get(sidecar).connect());
    if (before != null) {
      before.close();
    }
  }

  @Override
  public void close() {
    sidecars.values().forEach(TestSidecar::close); // first: frozen ones would hold up the clients
    clients.values().forEach(LockSidecar::close);
  }

  void run() throws Exception {
    int n = 0;
    for (JsonElement e : script.getAsJsonArray("steps")) {
      JsonObject step = e.getAsJsonObject();
      n++;
      try {
        step(step);
      } catch (Exception | AssertionError problem) {
        throw new AssertionError("step " + n + " " + step + ": " + problem, problem);
      }
    }
  }

  private void step(JsonObject s) throws Exception {
    switch (text(s, "do")) {
      case "acquire" -> acquire(s);
      case "pending" -> pending(calls.get(text(s, "call")), number(s, "time"));
      case "cancel" -> calls.get(text(s, "call")).answer().cancel(false);
      case "answer" -> answer(s);
      case "release" -> release(s);
      case "downgrade" -> refusal(s, () -> grips.get(text(s, "hold")).hold.downgrade());
      case "look" -> look(s);
      case "lost" -> lost(s);
      case "rising" -> rising(s.getAsJsonArray("holds"));
      case "order" -> {
        long apart = moment(text(s, "then")) - moment(text(s, "first"));
        assertTrue(apart > 0, "it was " + -apart + " ns too late");
      }
      case "close" -> clients.get(text(s, "client")).close();
      case "open" -> refusal(s, () -> open(text(s, "client")));
      case "freeze" -> sidecar(s).freeze();
      case "thaw" -> sidecar(s).thaw();
      case "kill" -> sidecar(s).kill();
      case "start" -> sidecar(s).restart();
      case "force" -> {
        TestSidecar sidecar = sidecar(s);
        forces.add(CompletableFuture.runAsync(() -> sidecar.force(text(s, "resource"), number(s, "grace") / 1000.0 + "s")));
      }
      case "queue" -> queue(s);
      case "pause" -> TestSidecar.pause(number(s, "time"));
      default -> fail("the step is not known");
    }
  }

  // --- steps

  private void acquire(JsonObject s) throws Exception {
    SidecarReadWriteLock rw;
    CompletableFuture<Hold> answer;
    try {
      rw = clients.get(text(s, "client")).readWriteLock(text(s, "resource"));
      SidecarLock lock = "SHARED".equals(text(s, "mode")) ? rw.readLock() : rw.writeLock();
      if (s.has("owner")) {
        lock = lock.withOwner(text(s, "owner"));
      }
      if (s.has("reentrant") && s.get("reentrant").getAsBoolean()) {
        lock = lock.reentrant();
      }
      if (s.has("maxHold")) {
        lock = lock.withMaxHold(Duration.ofMillis(number(s, "maxHold")));
      }
      if (s.has("call")) {
        answer = s.has("wait") ? lock.acquireAsync(Duration.ofMillis(number(s, "wait"))) : lock.acquireAsync();
      } else {
        Hold hold = s.has("wait") ? lock.acquire(Duration.ofMillis(number(s, "wait"))) : lock.acquire();
        answer = CompletableFuture.completedFuture(hold);
      }
    } catch (SidecarException e) {
      refused(s, e);
      return;
    }
    CompletableFuture<Grip> grip = answer.thenApply(Grip::new);
    Asked asked = new Asked(answer, grip, answer.handle((h, e) -> System.nanoTime()));
    if (s.has("call")) {
      calls.put(text(s, "call"), asked);
    } else {
      got(s, grip.get());
    }
  }

  private void got(JsonObject s, Grip grip) {
    granted(s);
    if (s.has("hold")) {
      grips.put(text(s, "hold"), grip);
    }
    if (s.has("count")) {
      assertEquals(number(s, "count"), grip.hold.count());
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

  private void answer(JsonObject s) throws Exception {
    Asked asked = calls.get(text(s, "call"));
    try {
      got(s, asked.grip().get(number(s, "within"), MILLISECONDS));
    } catch (ExecutionException e) {
      Throwable why = e.getCause();
      if (why instanceof CancellationException) {
        assertEquals(text(s, "error"), "CANCELLED");
      } else if (why instanceof SidecarException refusal) {
        refused(s, refusal);
      } else {
        throw e;
      }
    }
  }

  private void release(JsonObject s) throws Exception {
    refusal(
        s,
        () -> {
          int left = grips.get(text(s, "hold")).hold.release();
          if (s.has("count")) {
            assertEquals(number(s, "count"), left);
          }
        });
  }

  private void look(JsonObject s) {
    Hold hold = grips.get(text(s, "hold")).hold;
    if (s.has("lost")) {
      assertEquals(s.get("lost").getAsBoolean(), hold.isLost());
    }
    if (s.has("validFor")) {
      JsonArray range = s.getAsJsonArray("validFor");
      long v = hold.validFor().toNanos();
      assertTrue(v >= range.get(0).getAsLong() * 1_000_000 && v <= range.get(1).getAsLong() * 1_000_000, "it is valid for " + v + " ns");
    }
    if (s.has("mode")) {
      assertEquals(text(s, "mode"), hold.mode().name());
    }
    if (s.has("guard")) {
      assertEquals(s.get("guard").getAsBoolean(), hold.guard().isPresent());
    }
  }

  private void lost(JsonObject s) throws Exception {
    Grip grip = grips.get(text(s, "hold"));
    assertEquals(text(s, "reason"), grip.lost.get(number(s, "within"), MILLISECONDS).reason());
    assertTrue(grip.hold.isLost());
    assertEquals(Duration.ZERO, grip.hold.validFor());
  }

  private void rising(JsonArray holds) {
    long last = 0;
    for (JsonElement h : holds) {
      long fence = grips.get(h.getAsString()).hold.fence();
      assertTrue(fence > last, fence + " after " + last);
      last = fence;
    }
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

  private void queue(JsonObject s) {
    String want = number(s, "holders") + " " + number(s, "waiters");
    long end = System.nanoTime() + number(s, "within") * 1_000_000;
    while (true) {
      JsonObject l = sidecar(s).lock(text(s, "resource"));
      String is = l.getAsJsonArray("holders").size() + " " + l.getAsJsonArray("waiters").size();
      if (is.equals(want)) {
        owners(s, l.getAsJsonArray("holders"));
        return;
      }
      assertTrue(System.nanoTime() < end, "holders and waiters: " + is);
      TestSidecar.pause(5);
    }
  }

  private static void owners(JsonObject s, JsonArray holders) {
    if (!s.has("owners")) {
      return;
    }
    JsonArray want = s.getAsJsonArray("owners");
    for (int i = 0; i < want.size(); i++) {
      String is = holders.get(i).getAsJsonObject().get("owner").getAsString();
      if (want.get(i).getAsString().equals("*")) {
        assertNotEquals("", is);
      } else {
        assertEquals(want.get(i).getAsString(), is);
      }
    }
  }

  // --- what a step says of errors

  private interface Action {
    void run() throws Exception;
  }

  private void refusal(JsonObject s, Action a) throws Exception {
    try {
      a.run();
    } catch (SidecarException e) {
      refused(s, e);
      return;
    }
    granted(s);
  }

  private static void granted(JsonObject s) {
    assertFalse(s.has("error"), "it succeeded");
  }

  private static void refused(JsonObject s, SidecarException e) {
    if (!s.has("error")) {
      throw e;
    }
    assertEquals(text(s, "error"), e.reason(), e.getMessage());
    if (s.has("metadata")) {
      for (JsonElement key : s.getAsJsonArray("metadata")) {
        assertNotEquals("", e.metadata().getOrDefault(key.getAsString(), ""), "no " + key + " in " + e.metadata());
      }
    }
  }

  // --- fields

  private TestSidecar sidecar(JsonObject s) {
    return sidecars.get(text(s, "sidecar"));
  }

  private static String text(JsonObject s, String field) {
    return s.has(field) ? s.get(field).getAsString() : null;
  }

  private static long number(JsonObject s, String field) {
    return s.get(field).getAsLong();
  }
}
