package io.github.locksidecar;

import static java.util.concurrent.TimeUnit.MILLISECONDS;
import static java.util.concurrent.TimeUnit.SECONDS;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assertions.fail;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
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

    Grip(Hold hold, boolean watched) {
      this.hold = hold;
      if (watched) {
        hold.onLost(e -> lost.complete(new Told(e.lostReason(), System.nanoTime())));
      }
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
          Map.entry("dispose", (c, s) -> c.hold(s).close()),
          Map.entry("drop", ContractCase::drop),
          Map.entry("downgrade", (c, s) -> c.hold(s).downgrade()),
          Map.entry("extend", (c, s) -> c.hold(s).extend(Duration.ofMillis(s.number("maxHold")))),
          Map.entry("detach", ContractCase::detach),
          Map.entry("attach", (c, s) -> c.got(s, new Grip(c.clients.get(s.text("client")).attach(c.handle(s).handle()), true))),
          Map.entry("extendHandle", ContractCase::extendHandle),
          Map.entry("releaseHandle", (c, s) -> c.clients.get(s.text("client")).releaseDetached(c.handle(s).handle())),
          Map.entry("same", ContractCase::same),
          Map.entry("check", ContractCase::check),
          Map.entry("look", (c, s) -> look(s, c.hold(s))),
          Map.entry("lost", ContractCase::lost),
          Map.entry("rising", ContractCase::rising),
          Map.entry("slots", ContractCase::slots),
          Map.entry("order", ContractCase::order),
          Map.entry("close", ContractCase::close),
          Map.entry("open", (c, s) -> c.open(s.text("client"))),
          Map.entry("draining", (c, s) -> TestSidecar.eventually("told", within(s), c.clients.get(s.text("client"))::isDraining)),
          Map.entry("terminate", (c, s) -> c.sidecar(s).terminate()),
          Map.entry("ended", (c, s) -> c.sidecar(s).ended(within(s))),
          Map.entry("stop", ContractCase::stop),
          Map.entry("withheld", ContractCase::withheld),
          Map.entry("freeze", (c, s) -> c.sidecar(s).freeze()),
          Map.entry("thaw", (c, s) -> c.sidecar(s).thaw()),
          Map.entry("kill", (c, s) -> c.sidecar(s).kill()),
          Map.entry("start", (c, s) -> c.sidecar(s).restart()),
          Map.entry("force", ContractCase::force),
          Map.entry("queue", ContractCase::queue),
          Map.entry("leader", (c, s) -> c.leaders.leader(s)),
          Map.entry("watchLeader", (c, s) -> c.leaders.watch(s)),
          Map.entry("told", (c, s) -> c.leaders.told(s)),
          Map.entry("pause", (c, s) -> TestSidecar.pause(s.number("time"))));

  private static final Set<String> OF_A_CASE = Set.of("about", "store", "needs", "sidecars", "relays", "clients", "metadata", "steps");
  private static final Set<String> OF_A_STEP =
      Set.of(
          "do", "error", "metadata", "within", "time", "client", "sidecar", "relay", "lines", "resource", "resources",
          "mode", "wait", "owner", "reentrant", "maxHold", "minHold", "limit", "once", "unwatched", "hold", "call", "count",
          "outcome", "note", "lost", "validFor", "guard", "parts", "slot", "attempt", "previous", "holds", "are",
          "reason", "first", "then", "grace", "holders", "waiters", "owners", "detachable", "ttl", "handle",
          "value", "candidates", "interval", "watch");

  private final Json script;
  private final Map<String, TestSidecar> sidecars = new HashMap<>();
  private final Map<String, Relay> relays = new HashMap<>();
  private final Map<String, LockSidecar> clients = new HashMap<>();
  private final Set<String> closed = new HashSet<>(); // clients
  private final Map<String, Grip> grips = new HashMap<>();
  private final Map<String, Asked> calls = new HashMap<>();
  private final Map<String, Detached> handles = new HashMap<>();
  private final ContractLeaders leaders = new ContractLeaders(clients::get, hold -> grips.get(hold).hold.fence());

  ContractCase(Json script, String store) {
    this.script = script;
    String namespace = "java-" + UUID.randomUUID();
    try {
      known(script, OF_A_CASE);
      script.object("sidecars").names().forEach(name -> sidecars.put(name, start(name, store, namespace)));
      if (script.has("relays")) {
        for (String name : script.object("relays").names()) {
          Json relay = script.object("relays").object(name);
          relays.put(name, new Relay(sidecars.get(relay.text("to")), relay.text("without")));
        }
      }
      script.object("clients").names().forEach(this::open);
    } catch (IOException | RuntimeException | Error e) {
      close();
      throw new AssertionError(e);
    }
  }

  private static void known(Json fields, Set<String> names) {
    assertTrue(names.containsAll(fields.names()), "nobody knows all of " + fields.names());
  }

  /** Runs one case in a process of its own, because it stops the process: the file, the store. */
  public static void main(String[] args) throws Exception {
    try (ContractCase run = new ContractCase(Json.parse(Files.readString(Path.of(args[0]))), args[1])) {
      run.run();
    }
  }

  private TestSidecar start(String name, String store, String namespace) {
    List<String> flags = new ArrayList<>(List.of("--name", name, "--store", store, "--namespace", namespace));
    script.object("sidecars").textMap(name).forEach((flag, value) -> flags.addAll(List.of("--" + flag, value)));
    return TestSidecar.start(flags.toArray(String[]::new));
  }

  private void open(String client) {
    String at = script.object("clients").text(client);
    Path socket = relays.containsKey(at) ? relays.get(at).socket : sidecars.get(at).socket;
    if (closed.remove(client) || !clients.containsKey(client)) {
      clients.put(client, LockSidecar.builder().socket(socket).name(client).metadata(metadata(client)).connect());
    }
    clients.get(client).open();
  }

  private Map<String, String> metadata(String client) {
    Json all = script.object("metadata");
    return all == null ? Map.of() : all.textMap(client);
  }

  @Override
  public void close() {
    sidecars.values().forEach(TestSidecar::close); // first: frozen ones would hold up the clients
    clients.values().forEach(LockSidecar::close);
    for (Relay relay : relays.values()) {
      try {
        relay.close();
      } catch (IOException e) {
        throw new AssertionError(e);
      }
    }
  }

  private void close(Json s) {
    clients.get(s.text("client")).close();
    closed.add(s.text("client"));
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
    known(s, OF_A_STEP);
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

  private static Duration within(Json s) {
    return Duration.ofMillis(s.number("within"));
  }

  private static SidecarLock lock(LockSidecar client, Json s) {
    SidecarReadWriteLock rw =
        s.has("resources") ? client.readWriteLock(s.texts("resources")) : client.readWriteLock(s.text("resource"));
    SidecarLock lock = s.text("mode").equals("SHARED") ? rw.readLock() : rw.writeLock();
    if (s.has("once")) {
      Json once = s.object("once");
      Duration keep = once.has("keep") ? Duration.ofMillis(once.number("keep")) : Once.DEFAULT.keep();
      lock = client.once(s.text("resource"), new Once(keep, (int) once.number("maxAttempts")));
    }
    if (s.has("limit")) {
      lock = lock.withLimit((int) s.number("limit"));
    }
    if (s.has("owner")) {
      lock = lock.withOwner(s.text("owner"));
    }
    if (s.flag("reentrant")) {
      lock = lock.reentrant();
    }
    if (s.has("maxHold")) {
      lock = lock.withMaxHold(Duration.ofMillis(s.number("maxHold")));
    }
    if (s.flag("detachable")) {
      lock = lock.detachable();
    }
    if (s.has("minHold")) {
      lock = lock.withMinHold(Duration.ofMillis(s.number("minHold")));
    }
    return lock;
  }

  private void acquire(Json s) throws Exception {
    SidecarLock lock = lock(clients.get(s.text("client")), s);
    Duration wait = s.has("wait") ? Duration.ofMillis(s.number("wait")) : null;
    if (!s.has("call")) {
      got(s, new Grip(wait == null ? lock.acquire() : lock.acquire(wait), !s.flag("unwatched")));
      return;
    }
    CompletableFuture<Hold> answer = wait == null ? lock.acquireAsync() : lock.acquireAsync(wait);
    CompletableFuture<Long> at = answer.handle((h, e) -> System.nanoTime());
    calls.put(s.text("call"), new Asked(answer, answer.thenApply(h -> new Grip(h, true)), at));
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
    if (s.has("outcome")) {
      if (s.text("outcome").equals("SUCCEEDED")) {
        hold(s).succeeded(s.text("note"));
      } else {
        hold(s).failed(s.text("note"));
      }
      return;
    }
    int left = hold(s).release();
    if (s.has("count")) {
      assertEquals(s.number("count"), left);
    }
  }

  private void drop(Json s) {
    grips.remove(s.text("hold"));
    System.gc();
  }

  private void check(Json s) {
    Hold hold = hold(s);
    if (s.has("within")) {
      TestSidecar.eventually(
          "failing",
          within(s),
          () -> {
            try {
              hold.check();
              return false;
            } catch (SidecarException e) {
              return true;
            }
          });
    }
    hold.check();
  }

  private Detached handle(Json s) {
    return handles.get(s.text("handle"));
  }

  private void detach(Json s) {
    Hold hold = hold(s);
    Detached d = hold.detach(Duration.ofMillis(s.number("ttl")));
    handles.put(s.text("handle"), d);
    assertEquals(hold.mode(), d.mode());
    detachedAs(hold.resource(), hold.fence(), d, s.number("ttl"));
  }

  private void extendHandle(Json s) {
    Detached before = handle(s);
    Detached after = clients.get(s.text("client")).extendDetached(before.handle(), Duration.ofMillis(s.number("ttl")));
    assertEquals(before.handle(), after.handle());
    detachedAs(before.resource(), before.fence(), after, s.number("ttl"));
  }

  private static void detachedAs(String resource, long fence, Detached d, long ttl) {
    assertEquals(resource, d.resource());
    assertEquals(fence, d.fence());
    assertTrue(!d.validFor().isZero() && d.validFor().toMillis() <= ttl, d.toString());
  }

  private void same(Json s) {
    assertEquals(1, s.texts("holds").stream().map(h -> grips.get(h).hold.fence()).distinct().count());
  }

  private void slots(Json s) {
    List<Integer> slots = s.texts("holds").stream().map(h -> grips.get(h).hold.slot().orElseThrow()).sorted().toList();
    assertEquals(s.list("are").toString(), slots.toString());
  }

  private void withheld(Json s) {
    Relay relay = relays.get(s.text("relay"));
    TestSidecar.eventually("withheld", within(s), () -> relay.withheld.get() >= s.number("lines"));
  }

  private static void stop(ContractCase c, Json s) throws IOException, InterruptedException {
    Process stops = TestSidecar.stopThisProcess(s.number("time"));
    while (s.has("hold") && stops.isAlive()) {
      c.hold(s).check();
    }
    assertEquals(0, stops.waitFor());
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
    if (s.has("parts")) {
      assertEquals(s.texts("parts"), hold.parts().stream().map(Part::resource).toList());
      assertTrue(hold.parts().stream().allMatch(p -> p.fence() > 0));
    }
    if (s.names().contains("slot")) {
      assertEquals(LockState.Holder.optional(s, "slot"), hold.slot());
    }
    if (s.has("attempt")) {
      assertEquals(s.number("attempt"), hold.attempt());
    }
    if (s.names().contains("previous")) {
      Json p = s.object("previous");
      String want = p == null ? "none" : p.text("state") + " " + p.number("attempt") + " " + p.text("note");
      assertEquals(want, hold.previous().map(o -> o.state() + " " + o.attempt() + " " + o.note()).orElse("none"));
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

  private void order(Json s) throws Exception {
    long apart = moment(s.text("then")) - moment(s.text("first"));
    assertTrue(apart > 0, "it was " + -apart + " ns too late");
  }

  private long moment(String of) throws Exception {
    String name = of.substring(of.indexOf(':') + 1);
    if (of.startsWith("lost:")) {
      Told told = grips.get(name).lost.getNow(null);
      assertNotNull(told, name + " is not lost");
      return told.at();
    }
    assertTrue(of.startsWith("got:"), of);
    return calls.get(name).at().get(5, SECONDS); // it is noted beside the answer, and may be a little later
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
